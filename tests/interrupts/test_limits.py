"""A time limit strikes, and the process goes on: it arrives as itself, and what is known by then is kept."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import ProgrammingError, connection, connections, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from django_idempotency import Operation, ResultLost, ResultNotStorable, run_once
from django_idempotency.admin import IdempotencyKeyAdmin
from django_idempotency.backends import KeyValueBackend
from django_idempotency.backends.dynamodb import DynamoDBBackend
from django_idempotency.backends.redis import RedisBackend
from django_idempotency.engine.execution import attempt as module
from django_idempotency.engine.execution.commits import committed
from django_idempotency.engine.request.unprotected import safely
from django_idempotency.engine.stores import store_for
from django_idempotency.limits import is_limit
from django_idempotency.maintenance import recover_idempotency_keys
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.metrics import KeyCollector
from django_idempotency.models import IdempotencyKey
from django_idempotency.signals import key_event
from django_idempotency.templatetags.idempotency_admin import _paused
from tests.backends import CREDENTIALS, FaultyBackend
from tests.elsewhere import RUNS, events, faulty_backend, posting, publish  # noqa: F401 (a fixture)
from tests.heard import heard
from tests.http import replayed
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, breaks, row
from tests.shopapp.models import Order
from tests.step_rows import miscounted
from tests.strikes import Limit, strike, striking, struck, with_a_signal_at

pytestmark = pytest.mark.django_db(transaction=True)
CHARGES: list[str] = []
ID = "00000000-0000-0000-0000-000000000007"


@pytest.fixture(autouse=True)
def _striking() -> Iterator[None]:
    CHARGES.clear()
    with striking():
        yield


def interrupt() -> None:
    raise KeyboardInterrupt


def expires() -> None:
    """As another thread makes it raise: no handler's frame is in the traceback."""
    raise Limit


def once(work: Callable[..., Any], **options: Any) -> Any:
    return run_once(work, scope="s", key="k", operation="pay", **{"lease": 60, **options}).value


def placing(reference: str) -> Callable[[], Any]:
    return lambda: Order.objects.create(reference=reference).pk


class TestTheResultOfACall:
    @pytest.mark.parametrize("strikes", [[strike], [interrupt, interrupt], [expires]])
    def test_it_is_kept_and_the_limit_is_raised(self, strikes: list[Callable[[], object]]) -> None:
        """The gateway has answered, so a retry gets the receipt instead of an error for ever."""

        def pays(operation: Operation) -> Any:
            return operation.call("charge", lambda: CHARGES.append("charge") or {"id": struck(*strikes)})

        with pytest.raises((Limit, KeyboardInterrupt)):
            once(pays)
        assert (row().unknown, row().effects, miscounted()) == (0, 1, {})
        assert (once(pays), CHARGES) == ({"id": ID}, ["charge"])

    def test_it_is_lost_if_it_cannot_be_encoded_either_way(self) -> None:
        def pays(operation: Operation) -> Any:
            return operation.call("charge", lambda: [struck(strike), object()])

        with pytest.raises(ResultNotStorable, match="object is not JSON serializable"):
            once(pays)
        with pytest.raises(ResultLost):
            once(pays)

    def test_a_limit_that_never_ends_leaves_it_in_doubt(self) -> None:
        """Nothing is known to be wrong with the value, so it isn't lost."""

        def pays(operation: Operation) -> Any:
            operation.derive_key("charge")
            return operation.call("charge", lambda: struck(*[strike] * 9))

        with pytest.raises(Limit):
            once(pays)
        assert (row().unknown, row().effects, miscounted()) == (1, 0, {})

    def test_it_is_stored_again_if_the_limit_strikes_its_transaction(self) -> None:
        """Before its COMMIT, which never comes, and after it."""

        def pays(operation: Operation) -> Any:
            return operation.call("charge", lambda: CHARGES.append("charge") or {"id": ID})

        seen = []

        def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            found = execute(sql, params, many, context)
            if "finished_at" in sql and sql.startswith("UPDATE") and not seen:
                seen.append(sql)
                strike()
            return found

        with connections["default"].execute_wrapper(watch), pytest.raises(Limit):
            once(pays)
        assert (row().unknown, row().effects, miscounted(), len(seen)) == (0, 1, {}, 1)
        assert (once(pays), CHARGES) == ({"id": ID}, ["charge"])


@pytest.mark.parametrize("options", [{}, {"lease": None}], ids=["leased", "atomic"])
def test_a_limit_in_the_result_of_the_work_arrives_as_itself(options: dict[str, Any]) -> None:
    with pytest.raises(Limit):
        once(lambda operation: struck(strike), **options)
    assert once(lambda operation: struck(), **options) == ID


def test_a_work_that_catches_a_limit_in_a_step_may_start_the_next_one() -> None:
    """Wherever it struck in the step: the operation is not left behind as if it were inside that step's function."""
    outcomes = set()
    for number in range(1, 400):

        def apologizes(operation: Operation, number: int = number) -> str:
            try:
                inside = lambda: operation._within("charge", lambda: "paid")  # noqa: E731
                with_a_signal_at(number, signal.SIGUSR1, inside)
            except Limit:
                outcomes.add("struck")
                operation.write("apology", placing("sorry"))
                return "sorry"
            outcomes.add("paid")
            return "paid"

        run_once(apologizes, scope="s", key=str(number), operation="pay", lease=60)
        assert module._INSIDE.get() == (None, "")
        if "paid" in outcomes:
            break
    assert outcomes == {"struck", "paid"}


class TestLogAndReceivers:
    def test_a_limit_that_strikes_a_log_filter_is_raised(self, caplog: pytest.LogCaptureFixture) -> None:
        """And the receivers hear of the event."""
        caplog.set_level(logging.INFO, "django_idempotency")
        logger = logging.getLogger("django_idempotency")
        logger.addFilter(strike)
        try:
            with heard() as told, pytest.raises(Limit):
                once(placing("1"), lease=None)
        finally:
            logger.removeFilter(strike)
        assert [one["event"] for one in told] == ["claimed", "completed"]

    @pytest.mark.parametrize("inside", [False, True], ids=["alone", "in atomic()"])
    def test_a_limit_that_strikes_a_receiver_is_raised(self, inside: bool) -> None:
        """In the caller's transaction, too, where the event waits for the COMMIT."""

        def receiver(sender: Any, event: str, **kwargs: Any) -> None:
            if event == "completed":
                strike()

        def places() -> None:
            if inside:
                with transaction.atomic():
                    once(placing("1"), lease=None)
            else:
                once(placing("1"), lease=None)

        key_event.connect(receiver)
        try:
            with pytest.raises(Limit):
                places()
        finally:
            key_event.disconnect(receiver)
        assert not connection.in_atomic_block
        places()
        assert Order.objects.count() == 1


class Hooked:
    """Strikes once after the COMMIT of the transaction in which such a statement runs."""

    def __init__(self, *words: str) -> None:
        self.words, self.armed = words, True

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if self.armed and any(word in sql for word in self.words):
            self.armed = False
            transaction.on_commit(strike)
        return execute(sql, params, many, context)


def test_a_limit_after_the_commit_of_a_claim_frees_the_key() -> None:
    """A retry need not wait for the lease. Here the claim takes an expired key over, which a cursor does everywhere."""
    once(lambda operation: "first", ttl=3600)
    IdempotencyKey.objects.update(expires_at="2020-01-01T00:00:00Z")
    with connections["default"].execute_wrapper(Hooked("UPDATE")), pytest.raises(Limit):
        once(lambda operation: "second", ttl=3600)
    assert (row().status, row().locked_until) == ("failed", None)
    assert once(lambda operation: "third", ttl=3600) == "third"


def test_a_limit_that_a_driver_hides_is_raised_as_itself() -> None:
    """psycopg refuses what Django asks of a connection whose query was interrupted."""

    def confused() -> None:
        try:
            strike()
        except Limit:
            raise ProgrammingError("can't change 'autocommit' now") from None

    with pytest.raises(Limit):
        committed(store_for("default"), "x", confused)
    with pytest.raises(Broken):
        committed(store_for("default"), "x", breaks)


@pytest.mark.urls("tests.leased_urls")
def test_a_limit_ends_a_recovery(post: Callable[..., Any]) -> None:
    """`reconcile` was only what it struck, and has not raised. What it has recorded is in the trail."""
    GATEWAY.after = breaks
    with pytest.raises(Broken):
        post("/pay/reconcile")

    def records(operation: Any) -> None:
        operation.call("charge", lambda: {"charge": "found"})
        strike()

    HOOKS["reconcile"] = records
    told: list[Any] = []
    with pytest.raises(Limit):
        recover_idempotency_keys(older_than=0, progress=told.append)
    (decision,) = decisions_of(row())
    assert (told, row().status, decision.detail.partition(":")[0]) == (
        [],
        "failed",
        "reconcile has recorded charge, and interrupted by tests.strikes.Limit",
    )


@pytest.mark.parametrize("shown", [lambda: KeyCollector().collect(), _paused], ids=["gauge", "page"])
def test_a_limit_while_a_page_shows_the_pause_is_raised(shown: Callable[[], Any], settings: Any) -> None:
    settings.IDEMPOTENCY = {"PAUSED": strike}
    with pytest.raises(Limit):
        shown()


def test_a_limit_while_the_index_page_counts_is_raised(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IdempotencyKeyAdmin, "get_queryset", lambda *_: strike())
    with pytest.raises(Limit):
        admin_client.get(reverse("admin:index"))


def test_a_limit_while_a_request_is_observed_is_raised() -> None:
    with pytest.raises(Limit):
        safely(strike)


class TestBackends:
    """A claim, a result and a look at the winner are swaps. What strikes there is no silence of the store."""

    @pytest.mark.parametrize("when", ["plan", "after"])
    @pytest.mark.parametrize(("number", "runs"), [(0, 0), (1, 1)], ids=["claim", "result"])
    def test_a_limit_in_a_swap_is_raised(
        self, backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch, when: str, number: int, runs: int
    ) -> None:
        """The key is free at once if nothing ran, and otherwise its result is stored all the same."""
        monkeypatch.setattr(FaultyBackend, when, {number: strike})
        with heard() as told, pytest.raises(Limit):
            posting()()
        assert (len(RUNS), events(told)) == (runs, ["claimed", "completed"] if runs else [])
        assert replayed(posting()()) == ("true" if runs else "false")
        assert len(RUNS) == 1

    def test_a_limit_in_the_work_is_raised_even_if_another_worker_is_faster(self, backend: FaultyBackend) -> None:
        def overtaken(request: Any) -> HttpResponse:
            backend.clear()
            posting()()
            strike()
            raise AssertionError

        with pytest.raises(Limit):
            posting(overtaken)()
        assert replayed(posting()()) == "true"

    def test_a_limit_while_the_winner_is_looked_up_is_raised(
        self, backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def overtaken(request: Any) -> HttpResponse:
            backend.clear()
            posting()()
            monkeypatch.setattr(FaultyBackend, "plan", {FaultyBackend.swaps + 1: strike})
            return publish(request)

        with pytest.raises(Limit):
            posting(overtaken)()


@contextmanager
def silent_server() -> Iterator[int]:
    """A server that strikes the main thread once it has been sent something, and never answers."""
    main, held = threading.main_thread().ident, []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def listen() -> None:
            while True:
                try:
                    connected, _ = listening.accept()
                except OSError:
                    return
                held.append(connected)
                if connected.recv(1) and len(held) == 1:
                    signal.pthread_kill(main, signal.SIGUSR1)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connected in held:
                connected.close()


def redis_at(port: int) -> KeyValueBackend:
    return RedisBackend(f"redis://127.0.0.1:{port}")


def dynamodb_at(port: int) -> KeyValueBackend:
    return DynamoDBBackend("keys", endpoint_url=f"http://127.0.0.1:{port}", **CREDENTIALS)


@pytest.mark.parametrize("error", [TimeoutError, ConnectionResetError, Limit])
@pytest.mark.parametrize("at", [redis_at, dynamodb_at])
def test_a_client_of_a_store_takes_no_limit_for_its_own_error(at: Any, error: type[Exception]) -> None:
    """Even one of the same class: the store is not asked again, and the limit arrives as itself."""
    with striking(error), silent_server() as port:
        backend = at(port)
        with pytest.raises(error) as caught:
            backend.swap("name", None, b"1", 30)
    assert type(caught.value) is error
    assert is_limit(caught.value)
