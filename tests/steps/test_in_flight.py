"""Calls of keys in flight: a renamed one, two in doubt, and one that outlives its lease."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_idempotency import IdempotencyConfigurationError, Operation, Result, arun_once, run_once
from django_idempotency.engine.execution import table
from django_idempotency.maintenance import half_done, in_doubt, needs_attention
from tests.heard import heard
from tests.leased_urls import GATEWAY
from tests.leases import Broken, as_if_killed, breaks, row

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]


def charge(operation: Operation) -> Any:
    return operation.call("charge", GATEWAY.charge, operation.derive_key("charge"))


class TestARenamedStep:
    """A deployment renames "charge" to "charge card" while keys are in flight: that would charge each of them again."""

    @pytest.fixture(autouse=True)
    def _charged(self, caplog: pytest.LogCaptureFixture) -> None:
        table.tell_renamed.cache_clear()
        caplog.set_level("ERROR", "django_idempotency")
        with pytest.raises(Broken):
            self.once(lambda operation: (charge(operation), breaks()))

    def once(self, work: Callable[[Operation], Any], **options: Any) -> Any:
        return run_once(work, scope="s", key="k", operation="pay", lease=60, **options).value

    def renamed(self, operation: Operation) -> Any:
        return operation.call("charge card", GATEWAY.charge, operation.derive_key("charge card"))

    @pytest.mark.parametrize("policy", ["retry-keyed", "hold"])
    def test_it_is_refused_before_the_call(self, policy: Any, caplog: pytest.LogCaptureFixture) -> None:
        """Each time, and logged once, with both names. With the old name, the key goes on."""
        for _ in range(2):
            with pytest.raises(IdempotencyConfigurationError, match=r"call\('charge card'\) .* finished 'charge', for"):
                self.once(self.renamed, on_abandoned=policy)
        assert (len(GATEWAY.charges), half_done().count()) == (1, 1)
        assert [one.split(" would")[0] for one in caplog.messages] == ["pay: operation.call('charge card')"]
        assert self.once(charge, on_abandoned=policy) == self.once(charge)
        assert len(GATEWAY.charges) == 1

    def test_under_retry_it_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        """The project has said that its calls may be made twice. The key stays half done."""
        self.once(self.renamed, on_abandoned="retry")
        assert (len(GATEWAY.charges), half_done().count(), len(caplog.messages)) == (2, 1, 1)

    def test_another_call_is_made_after_the_known_ones(self) -> None:
        """The deployment adds a call before the charge: the results say what is known."""

        def checks_first(operation: Operation) -> Any:
            known = operation.results
            operation.call("check", lambda: "checked")
            return "charge" in known, charge(operation)

        assert self.once(checks_first)[0] is True
        assert len(GATEWAY.charges) == 1

    @pytest.mark.parametrize("names", [("mail", "charge"), ("charge", "mail")])
    def test_calls_that_are_made_at_the_same_time_know_each_other(self, names: tuple[str, str]) -> None:
        """In whichever order."""

        async def gathers(operation: Operation) -> Any:
            return await asyncio.gather(*(operation.acall(name, lambda: "done") for name in names))

        async def once() -> Any:
            return (await arun_once(gathers, scope="s", key="k", operation="pay", lease=60)).value

        assert "done" in async_to_sync(once)()
        assert len(GATEWAY.charges) == 1

    def test_reconcile_may_make_a_new_call(self) -> None:
        """It looks at each doubt by itself."""

        def refunds(operation: Operation) -> Result[Any]:
            return Result(operation.call("refund", lambda: "refunded"), replayed=False)

        as_if_killed()
        assert self.once(charge, reconcile=refunds) == "refunded"


class TestTwoDoubts:
    def twice(self, operation: Operation) -> None:
        for name in ("charge", "mail"):
            operation.derive_key(name)
            with suppress(Broken):
                operation.call(name, breaks)

    def once(self, **options: Any) -> Any:
        return run_once(self.twice, scope="s", key="k", operation="pay", lease=60, **options).value

    def test_an_answer_of_reconcile_does_not_hide_the_other_one(self) -> None:
        """It is returned, and not kept, until each is recorded."""
        recorded = [("charge",), (), ("charge", "mail")]

        def answers(operation: Operation) -> Result[str]:
            for name in set(recorded.pop(0)) & {*operation.in_doubt}:
                operation.call(name, lambda: "found")
            return Result("answered", replayed=False)

        self.once()
        for _ in range(2):
            assert self.once(reconcile=answers) == "answered"
            assert (row().status, row().unknown, in_doubt().count()) == ("failed", 1, 1)
            assert "mail took effect" in str(row().last_error)
        recorded[0] = ("mail",)
        assert self.once(reconcile=answers) == "answered"
        assert (row().status, row().unknown, row().effects, needs_attention().count()) == ("completed", 0, 2, 0)

    def test_an_answer_without_a_record_settles_neither(self) -> None:
        self.once()
        self.once(reconcile=lambda operation: Result("answered", replayed=False))
        assert (row().status, row().unknown, in_doubt().count()) == ("failed", 2, 1)


@pytest.mark.django_db(transaction=True)
class TestALongCall:
    @pytest.fixture(autouse=True)
    def _first(self) -> None:
        table._firsts.cache_clear()

    def outlives(self, operation: Operation) -> Any:
        def waits() -> str:
            end = time.monotonic() + 0.11
            while time.monotonic() < end:
                pass
            return "paid"

        return operation.call("charge", waits)

    @pytest.mark.parametrize("enabled", [True, False])
    def test_it_is_told_once_an_operation(self, enabled: bool, settings: Any, caplog: pytest.LogCaptureFixture) -> None:
        """At its end, so that the lease is mended before a crash. Without protection, too: observing shows it."""
        settings.IDEMPOTENCY = {"ENABLED": enabled}
        caplog.set_level("WARNING", "django_idempotency")
        with heard() as told:
            for key in "ab":
                run_once(self.outlives, scope="s", key=key, operation="pay", lease=0.1)
        (slow,) = (one for one in told if one["event"] == "slow_call")
        assert slow["identity"].operation == "pay"
        assert re.fullmatch(
            r"charge took 0\.\d seconds, and ended \d+\.\d seconds after the lease of 0\.1 seconds had begun",
            slow["reason"],
        )
        assert [one.levelname for one in caplog.records if "slow_call" in one.getMessage()] == ["WARNING"]

    def test_a_renewed_lease_begins_again(self) -> None:
        def renews(operation: Operation) -> Any:
            with suppress(Broken):
                operation.call("slow", lambda: (operation.renew(), breaks()))
            return "done"

        with heard() as told:
            run_once(renews, scope="s", key="k", operation="pay", lease=60)
        assert "slow_call" not in [one["event"] for one in told]
