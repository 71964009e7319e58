"""`run_once` in leased mode."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, connection

from django_idempotency import (
    IdempotencyConfigurationError,
    Operation,
    OperationInProgress,
    OutcomeUnknown,
    Result,
    run_once,
)
from django_idempotency.engine.stores import store_for
from tests.works import RUNS, breaks, pay

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _clean() -> None:
    RUNS.clear()


class TestLeased:
    def test_waiting_it_looks_again_and_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With pauses that grow, while somebody else holds the lease."""
        store = store_for("default")
        looks: list[Any] = []
        claim = store.claim

        def counted(wanted: Any) -> Any:
            looks.append(wanted)
            return claim(wanted)

        def meet(operation: Operation) -> None:
            monkeypatch.setattr(store, "claim", counted)
            with pytest.raises(OperationInProgress):
                run_once(pay, scope="s", key="k", lease=60, operation="meet", wait=0.6)

        run_once(meet, scope="s", key="k", lease=60, operation="meet")
        assert 3 <= len(looks) < 30

    def test_a_conflict_says_when_to_come_back(self) -> None:
        """60 seconds at most, also for a lease of an hour. The error keeps that through pickle, as Celery sends it."""

        def meet(operation: Operation) -> None:
            with pytest.raises(OperationInProgress) as raised:
                run_once(pay, scope="s", key="k", lease=3600, operation="meet")
            assert raised.value.retry_after == pickle.loads(pickle.dumps(raised.value)).retry_after == 60

        run_once(meet, scope="s", key="k", lease=3600, operation="meet")

    def test_a_call_in_doubt_is_held(self) -> None:
        """A named exception until somebody knows."""
        work: Callable[..., Any] = lambda operation: operation.call("charge", breaks)  # noqa: E731
        options: dict[str, Any] = {"lease": 60, "on_abandoned": "hold", "operation": "pay"}
        with pytest.raises(ValueError, match="it broke"):
            run_once(work, scope="s", key="k", **options)
        with pytest.raises(OutcomeUnknown, match="its outcome is unknown"):
            run_once(work, scope="s", key="k", **options)
        assert len(RUNS) == 1

    def test_reconcile_returns_a_result(self) -> None:
        """Or None to run again; anything else is refused."""
        work: Callable[..., Any] = lambda operation: operation.call("charge", breaks)  # noqa: E731
        options: dict[str, Any] = {"scope": "s", "key": "k", "lease": 60, "operation": "pay"}
        with pytest.raises(ValueError, match="it broke"):
            run_once(work, **options)
        with pytest.raises(
            IdempotencyConfigurationError, match=r"reconcile=<function .* returned 'charged'; return Res"
        ):
            run_once(work, reconcile=lambda operation: "charged", **options)
        with pytest.raises(ValueError, match="it broke"):
            run_once(work, reconcile=lambda operation: None, **options)
        found = run_once(work, reconcile=lambda operation: Result(operation.in_doubt, replayed=False), **options)
        assert found == Result(["charge"], replayed=False)
        assert run_once(work, **options) == Result(["charge"], replayed=True)


@pytest.mark.only_on("postgresql")
class TestALeasedClaimThatFails:
    """A transaction that the database asks to repeat has done nothing yet: it is repeated once."""

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Let the next claims fail with real errors of the database."""
        store = store_for("default")
        claim, left = store.claim, []

        def claim_or_fail(wanted: Any) -> Any:
            if left:
                with connection.cursor() as cursor:
                    cursor.execute(f"DO $$ BEGIN RAISE SQLSTATE '{left.pop()}'; END $$")
            return claim(wanted)

        monkeypatch.setattr(store, "claim", claim_or_fail)
        return lambda *states: left.extend(states)

    @staticmethod
    def run() -> int:
        return run_once(lambda operation: operation.attempt, scope="s", key="k", operation="o", lease=60).value

    @pytest.mark.parametrize("state", ["40001", "40P01"])
    def test_once_it_is_repeated(self, failing: Callable[..., None], state: str) -> None:
        """The caller does not hear of it."""
        failing(state)
        assert self.run() == 1

    def test_twice_it_is_a_conflict(self, failing: Callable[..., None]) -> None:
        """Somebody else is at this key all the time."""
        failing("40001", "40P01")
        with pytest.raises(OperationInProgress):
            self.run()
        assert self.run() == 1

    def test_any_other_error_propagates(self, failing: Callable[..., None]) -> None:
        """And is not repeated."""
        failing("53100")
        with pytest.raises(DatabaseError):
            self.run()
        assert self.run() == 1
