"""The contract of the adapters in leased mode, with ATOMIC_REQUESTS, and of many requests at once (adapters.py)."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from threading import Barrier, Event, Timer
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from django_idempotency import IdempotencyConfigurationError, OutcomeUnknown
from django_idempotency.maintenance import half_done, in_doubt, needs_attention
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.contracts.adapters import (
    COMMITS,
    RUNS,
    Adapter,
    Answer,
    Refusal,
    adapters,
    code,
    counts,
    create,
    marks,
    operation_of,
    order,
    raises,
)
from tests.leases import Broken, breaks, lapse
from tests.shopapp.models import Line, Order

pytestmark = pytest.mark.django_db
Threads = Callable[..., list[Any]]
adapter = adapters(lambda adapter: True)
answering = adapters(lambda adapter: adapter.answers_exceptions)
kind = adapters(
    lambda adapter: type(adapter).__name__ in ("Function", "AsyncFunction", "RestFramework", "Ninja", "Once")
)
under_atomic_requests = adapters(lambda adapter: type(adapter).__name__ != "AsyncNinja")
on_atomic_requests = adapters(lambda adapter: adapter.http and type(adapter).__name__ != "AsyncNinja")
"""Django refuses ATOMIC_REQUESTS with an asynchronous callback. Ninja's is one, and no mark reaches it."""


class TestLeased:
    def charges_and_orders(self, request: Any) -> Answer:
        """One charge, then one order."""
        operation = operation_of(request)
        charge = operation.call("charge", lambda: RUNS.append("charged") or operation.derive_key("charge"))
        made = operation.write("order", Order.objects.create, reference=charge)
        return Answer(201, json.dumps({"id": made.pk}))

    def test_it_calls_and_writes_once(self, adapter: Adapter) -> None:
        send = adapter.protect(self.charges_and_orders, lease=60)
        sent = [send() for _ in range(2)]
        assert marks(sent) == [(201, "false"), (201, "true")]
        assert (sent[0].kept == sent[1].kept, RUNS, Order.objects.count()) == (True, ["charged"], 1)
        assert set(IdempotencyStep.objects.values_list("name", flat=True)) == {"charge", "order"}

    @pytest.mark.parametrize("on_abandoned", ["retry", "hold"])
    def test_a_call_that_raises_is_in_doubt(self, adapter: Adapter, on_abandoned: str) -> None:
        """ "retry" calls again under the same derived key, "hold" waits for a person."""

        def breaks(request: Any) -> Answer:
            operation = operation_of(request)

            def charge() -> None:
                RUNS.append(operation.derive_key("charge"))
                raise ZeroDivisionError

            operation.call("charge", charge)
            raise AssertionError

        send = adapter.protect(breaks, lease=60, on_abandoned=on_abandoned)
        with pytest.raises(ZeroDivisionError):
            send()
        assert (IdempotencyKey.objects.get().status, IdempotencyStep.objects.get().finished_at) == ("failed", None)
        lapse()
        if on_abandoned == "hold":
            held = send()
            assert (held.status, len(RUNS)) == (409, 1)
            assert not adapter.http or (code(held), held.headers["Retry-After"]) == ("outcome-unknown", "60")
        else:
            with pytest.raises(ZeroDivisionError):
                send()
            assert (len(RUNS), len(set(RUNS))) == (2, 1)

    def test_a_final_answer_to_an_exception_is_kept(self, answering: Adapter) -> None:
        """After the call that was made: the view knows what the gateway said."""

        def refused(request: Any) -> Answer:
            operation_of(request).call("charge", lambda: RUNS.append("charged"))
            raise Refusal(402)

        send = answering.protect(refused, lease=60)
        assert marks([send(), send()]) == [(402, "false"), (402, "true")]
        assert RUNS == ["charged"]

    def test_a_late_worker_that_raises_gets_the_winners_result(self, adapter: Adapter) -> None:
        """Its lease ran out, and a retry has completed the key: what it raises is no matter to the client."""

        def late(request: Any) -> Answer:
            RUNS.append(len(RUNS))
            if len(RUNS) == 1:
                lapse()
                assert marks([send()]) == [(201, "false")]
                raise ZeroDivisionError
            return Answer(201, json.dumps({"run": len(RUNS)}))

        send = adapter.protect(late, lease=60)
        answer = send()
        assert (answer.status, answer.replayed, len(RUNS)) == (201, "true", 2)

    def test_a_charge_does_not_complete_without_its_order(self, adapter: Adapter) -> None:
        """The first attempt catches the error of its write; the second one does not ask for the charge."""

        def goes_on(request: Any) -> Answer:
            if not RUNS:
                operation_of(request).call("charge", lambda: RUNS.append("charged"))
                with suppress(ZeroDivisionError):
                    operation_of(request).write("order", lambda: 1 // 0)
            return Answer(200, "{}")

        send = adapter.protect(goes_on, lease=60)
        assert marks([send(), send()]) == [(200, "false"), (200, "false")]
        assert (RUNS, IdempotencyKey.objects.get().status, half_done().count()) == (["charged"], "failed", 1)

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.usefixtures("atomic_requests")
    def test_djangos_transaction_is_taken_over_or_refused(self, under_atomic_requests: Adapter) -> None:
        """The claim must be committed before the call."""
        adapter = under_atomic_requests
        send = adapter.protect(self.charges_and_orders, lease=60)
        if adapter.takes_over:
            assert marks([send(), send()]) == [(201, "false"), (201, "true")]
        else:
            with pytest.raises(IdempotencyConfigurationError, match=r"database 'default'.*RevisionMiddleware"):
                send()
            assert RUNS == []


class TestRetryKeyed:
    """The default repeats a call only if the called service can recognize it. Each kind of operation."""

    @pytest.mark.parametrize(
        ("earlier", "now", "hours", "repeated"),
        [
            ("before", "before", 22, True),
            ("before", "before", 24, False),
            ("before", "in the call", 1, False),
            ("before", "never", 1, False),
            ("in the call", "before", 1, False),
            ("never", "before", 1, False),
        ],
    )
    def test_a_call_in_doubt_is_repeated_with_its_key_or_not_at_all(
        self, kind: Adapter, earlier: str, now: str, hours: int, repeated: bool
    ) -> None:
        """Each start must have asked for the key before the call, and the first be younger than DERIVED_KEYS_LAST."""

        def charges(request: Any) -> Answer:
            operation, asked = operation_of(request), now if RUNS else earlier

            def gateway() -> None:
                RUNS.append(asked == "in the call" and operation.derive_key("charge"))
                if len(RUNS) == 1:
                    raise Broken

            if asked == "before":
                operation.derive_key("charge")
            operation.call("charge", gateway)
            return Answer(201, "{}")

        send = kind.protect(charges, lease=60)
        with pytest.raises(Broken):
            send()
        IdempotencyStep.objects.update(started_at=timezone.now() - timedelta(hours=hours))
        if repeated:
            assert marks([send(), send()]) == [(201, "false"), (201, "true")]
            assert (len(RUNS), needs_attention().count()) == (2, 0)
            return
        sent = send()
        assert sent.status == 409
        assert not kind.http or code(sent) == "outcome-unknown"
        assert (len(RUNS), in_doubt().count(), needs_attention().count()) == (1, 1, 1)
        assert (send().status, len(RUNS)) == (409, 1)


class TestReconcile:
    @pytest.mark.parametrize(("on_abandoned", "asynchronous"), [("retry-keyed", False), ("hold", True)])
    def test_it_may_not_know_yet(
        self, adapter: Adapter, caplog: pytest.LogCaptureFixture, on_abandoned: str, asynchronous: bool
    ) -> None:
        """That is an answer and no error: each retry asks again, until it knows."""
        asked: list[Any] = []

        def pays(request: Any) -> Answer:
            operation = operation_of(request)
            return Answer(201, json.dumps(operation.call("charge", breaks, operation.derive_key("charge"))))

        def look_up(operation: Any) -> None:
            asked.append(operation.doubts["charge"])
            if len(asked) < 3:
                raise OutcomeUnknown("not in its list yet: pay_1")
            operation.call("charge", lambda: {"charge": "found"})

        async def alook_up(operation: Any) -> None:
            await sync_to_async(look_up)(operation)

        send = adapter.protect(
            pays,
            lease=60,
            operation="orders",
            on_abandoned=on_abandoned,
            reconcile=alook_up if asynchronous else look_up,
        )
        with pytest.raises(Broken):
            send()
        IdempotencyStep.objects.update(started_at=timezone.now() - timedelta(hours=30))
        caplog.clear()
        for attempt in (2, 3):
            held = send()
            assert held.status == 409
            if adapter.http:
                assert (code(held), held.headers["Retry-After"], held.replayed) == ("outcome-unknown", "60", "false")
            else:
                assert re.fullmatch(
                    "orders with key 'k' was interrupted, and reconcile does not know its outcome yet "
                    r"\(django_idempotency.exceptions.OutcomeUnknown: line .*look_up\)\. Try again later\.",
                    str(held.body),
                )
            key = IdempotencyKey.objects.get()
            assert (key.status, key.attempt, key.unknown, in_doubt().count()) == ("failed", attempt, 1, 1)
        done = [send(), send()]
        assert marks(done) == [(201, "false"), (201, "true")]
        assert json.loads(done[0].body) == {"charge": "found"}
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
        assert all(doubt.keyed and timedelta(hours=30) < doubt.age < timedelta(hours=31) for doubt in asked)
        assert {doubt.started_at for doubt in asked} == {IdempotencyStep.objects.get().started_at}


@pytest.mark.django_db(transaction=True)
class TestTransactions:
    def test_hooks_run_once_after_the_commit(self, adapter: Adapter) -> None:
        def hooked(request: Any) -> Answer:
            transaction.on_commit(lambda: COMMITS.append(connection.in_atomic_block))
            return order()

        send = adapter.protect(hooked)
        assert marks([send(), send()]) == [(201, "false"), (201, "true")]
        assert COMMITS == [False]

    @pytest.mark.only_on("postgresql", "sqlite")
    @pytest.mark.parametrize("atomic", [False, True])
    def test_a_failing_commit_is_no_success(
        self, under_atomic_requests: Adapter, atomic: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With and without ATOMIC_REQUESTS: no order, no key."""
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)

        def broken(request: Any) -> Answer:
            Line.objects.create(order_id=2**40)  # checked at COMMIT
            return order()

        with pytest.raises(IntegrityError):
            under_atomic_requests.protect(broken)()
        assert counts() == (0, 0)

    @pytest.mark.usefixtures("atomic_requests")
    def test_under_atomic_requests_the_promises_hold(self, under_atomic_requests: Adapter) -> None:
        """A replay, a kept refusal, and Django's transaction around what is not protected."""
        adapter, atomic = under_atomic_requests, []

        def noting(request: Any) -> Answer:
            atomic.append(connection.in_atomic_block)
            return order()

        send = adapter.protect(noting)
        assert marks([send(), send()]) == [(201, "false"), (201, "true")]
        if adapter.http:
            assert send(method="put").replayed is None
            assert atomic == [True, True]
            Order.objects.last().delete()
        if adapter.answers_exceptions:
            adapter.urls.urlpatterns.clear()  # type: ignore[attr-defined]
            send = adapter.protect(raises(Refusal(402)), operation="refused")
            assert marks([send(), send()]) == [(402, "false"), (402, "true")]
        assert Order.objects.count() == 1

    @pytest.mark.parametrize(("method", "asgi"), [("put", False), ("get", True)])
    @pytest.mark.usefixtures("atomic_requests")
    def test_an_unprotected_method_that_fails_leaves_no_half(
        self, on_atomic_requests: Adapter, method: str, asgi: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The mark takes Django's own guard away, which is a transaction or, for asynchronous views, a refusal."""
        monkeypatch.setattr(on_atomic_requests, "asynchronous", asgi)
        send = on_atomic_requests.protect(raises(Broken()))
        with pytest.raises(Broken):
            send(method=method)
        assert (counts(), len(RUNS)) == ((0, 0), 1)

    def test_of_many_at_once_one_runs(self, adapter: Adapter, in_threads: Threads) -> None:
        """The others are told to come back, or get its answer."""
        send, barrier = adapter.protect(create), Barrier(8, timeout=30)

        def deliver(number: int) -> Answer:
            barrier.wait()
            return send()

        sent = in_threads(8, deliver)
        assert {answer.status for answer in sent} <= {201, 503 if connection.vendor == "sqlite" else 409}
        served = [answer for answer in sent if answer.status == 201]
        assert [answer.replayed for answer in served].count("false") == 1
        assert [answer.kept for answer in served] == [served[0].kept] * len(served)
        assert send() == Answer(*served[0].kept, replayed="true")
        assert (counts(), len(RUNS)) == ((1, 1), 1)

    @pytest.mark.only_on("postgresql", "mysql")
    @pytest.mark.parametrize(("wait", "expected"), [(0, (409, "false")), (30, (201, "true"))])
    def test_a_duplicate_of_a_running_operation(
        self, kind: Adapter, in_threads: Threads, wait: int, expected: tuple[int, str]
    ) -> None:
        """409 with Retry-After, at once; or, after a wait, the answer. On SQLite no duplicate gets so far."""
        started, go = Event(), Event()

        def held(request: Any) -> Answer:
            answer = order()
            started.set()
            assert go.wait(30), "the duplicate never got its answer"
            return answer

        send = kind.protect(held, wait=wait)

        def deliver(number: int) -> Answer:
            if number == 0:
                return send()
            assert started.wait(30), "the first never began"
            if wait:
                Timer(0.3, go.set).start()  # by then the duplicate would have been answered, if it did not wait
            try:
                return send()
            finally:
                go.set()

        first, second = in_threads(2, deliver)
        assert (first.status, first.replayed, second.status, len(RUNS)) == (201, "false", expected[0], 1)
        if expected[0] == 409:
            assert second.headers["Retry-After"] == "1"
            assert not kind.http or (code(second), second.replayed) == ("in-progress", "false")
        else:
            assert (second.replayed, second.kept) == ("true", first.kept)
