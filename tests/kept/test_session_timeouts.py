"""PostgreSQL's timeouts that end the session: nothing is half done, the key is not stuck, and the retry runs once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from threading import Event
from typing import Any

import pytest
from django.db import Error, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_idempotency import Operation, StoreBusy, TransactionBroken, get_operation, idempotent, run_once
from django_idempotency.models import IdempotencyKey
from tests.http import post_empty
from tests.leased_urls import GATEWAY, HOOKS
from tests.servers import DEADLINE, eventually
from tests.shopapp.models import Order
from tests.sql import ask, has_setting, isolated
from tests.tap import tapped, verbs
from tests.unreachable import reached_by
from tests.ways import going

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
SETTINGS = ("transaction_timeout", "idle_in_transaction_session_timeout")


def elsewhere(look: Callable[[], Any]) -> Any:
    """On another thread, which has a connection of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(isolated(look)).result(DEADLINE)


def lasts_too_long(and_ask: str = "NULL") -> None:
    """Something slow and without SQL, until the server has ended the session."""
    _, pid = ask(f"SELECT {and_ask}, pg_backend_pid()")
    gone = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"
    elsewhere(lambda: eventually("the session to end", lambda: ask(gone) == (0,)))


def is_struck_by(setting: str) -> None:
    """The timeout is set here, because a busy machine could need longer for the claim than the tests are to wait."""
    lasts_too_long(f"set_config('{setting}', '1ms', true)")


def sleeps(setting: str) -> None:
    """A slow statement."""
    ask(f"SELECT set_config('{setting}', '1ms', true)")
    ask("SELECT pg_sleep(60)")


def answers() -> None:
    pass


def writes() -> None:
    Order.objects.create(reference="after")


def hides_the_error() -> None:
    with pytest.raises(Error):
        writes()


def hides_the_error_of_a_block() -> None:
    with pytest.raises(Error), transaction.atomic():
        writes()


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> str:
    has_setting(request.param)
    return str(request.param)


def placing(slow: Callable[[], None], then: Callable[[], None]) -> tuple[Callable[[], Any], list[Any]]:
    """Post to a view that is slow in its first run; and a list of its runs."""
    runs: list[Any] = []

    @idempotent(scope=lambda request: "s")
    def place(request: HttpRequest) -> HttpResponse:
        runs.append(request)
        Order.objects.create(reference=f"run {len(runs)}")
        if len(runs) == 1:
            slow()
            then()
        return HttpResponse("placed", status=201)

    return lambda: place(RequestFactory().post("/", headers={"Idempotency-Key": "k"})), runs


def orders() -> list[str]:
    return list(Order.objects.order_by("pk").values_list("reference", flat=True))


def assert_the_retry_runs_once(post: Callable[[], Any], runs: list[Any]) -> None:
    connection.close_if_unusable_or_obsolete()  # as Django does at the end of a request
    assert (orders(), IdempotencyKey.objects.count()) == ([], 0)
    again = [post() for _ in range(2)]
    assert [(answer.status_code, answer.headers["Idempotency-Replayed"]) for answer in again] == [
        (201, "false"),
        (201, "true"),
    ]
    assert (orders(), len(runs)) == (["run 2"], 2)


class TestAtomic:
    @pytest.mark.parametrize("way", ["prepared", "text", "cursor"])
    @pytest.mark.parametrize("then", [answers, writes])
    def test_it_is_an_error_and_no_success(self, setting: str, way: str, then: Callable[[], None]) -> None:
        """Also where the view needs no database any more; whichever way its response would have been stored."""
        post, runs = placing(lambda: is_struck_by(setting), then)
        with going(way):
            with pytest.raises(Error):
                post()
            assert_the_retry_runs_once(post, runs)

    @pytest.mark.parametrize("then", [hides_the_error, hides_the_error_of_a_block])
    def test_hidden_it_is_no_success(self, setting: str, then: Callable[[], None]) -> None:
        post, runs = placing(lambda: is_struck_by(setting), then)
        with pytest.raises((Error, TransactionBroken)):
            post()
        assert_the_retry_runs_once(post, runs)

    def test_set_for_the_connection(self) -> None:
        """As projects do. It can strike only once the claim is made, because BEGIN comes with the claim."""
        post, runs = placing(lasts_too_long, answers)
        options = {"options": "-c idle_in_transaction_session_timeout=200ms"}
        with reached_by({"OPTIONS": options}), pytest.raises(Error):
            post()
        assert_the_retry_runs_once(post, runs)

    def test_in_a_statement(self) -> None:
        has_setting("transaction_timeout")
        post, runs = placing(lambda: sleeps("transaction_timeout"), answers)
        with pytest.raises(Error):
            post()
        assert_the_retry_runs_once(post, runs)


@pytest.mark.urls("tests.leased_urls")
class TestLeased:
    @pytest.mark.parametrize("then", [answers, hides_the_error])
    @pytest.mark.parametrize("path", ["/hooked", "/hooked/hold"])
    def test_in_a_write(self, setting: str, key: str, path: str, then: Callable[[], None]) -> None:
        """The step is rolled back. The retry repeats it, and not the call before it."""

        def pays(request: Any) -> int:
            operation: Operation = get_operation(request)  # type: ignore[assignment]
            operation.call("charge", GATEWAY.charge, operation.derive_key("charge"))

            def place() -> None:
                Order.objects.create(reference=f"attempt {operation.attempt}")
                if operation.attempt == 1:
                    is_struck_by(setting)
                    then()

            operation.write("order", place)
            return operation.attempt

        HOOKS["view"] = pays
        assert post_empty(key, path).status_code == 500
        assert (orders(), IdempotencyKey.objects.get().status) == ([], "failed")
        again = [post_empty(key, path) for _ in range(2)]
        assert [(answer.status_code, answer.json()["result"]) for answer in again] == [(201, 2)] * 2
        assert (orders(), GATEWAY.calls) == (["attempt 2"], 1)

    def test_a_call_is_no_idle_transaction(self, key: str) -> None:
        """However long it takes: its session is idle, and not idle in a transaction."""
        states: list[Any] = []

        def look() -> None:
            (pid,) = ask("SELECT pg_backend_pid()")
            state = f"SELECT state FROM pg_stat_activity WHERE pid = {pid}"
            states.append(elsewhere(lambda: ask(state)))

        GATEWAY.before = look
        assert (post_empty(key).status_code, states) == (201, [("idle",)])


def once(work: Callable[..., Any] = lambda *args: Order.objects.create().pk, **options: Any) -> Any:
    return run_once(work, scope="s", key="k", operation="o", **options)


class TestClaim:
    """A claim that waits for a migration is in tests/databases/threads/test_postgresql_locks.py."""

    @pytest.mark.parametrize("lease", [None, 60])
    def test_between_two_messages_of_a_claim_nothing_has_run(self, lease: int | None) -> None:
        """BEGIN went alone, and the network was slow."""
        with going("cursor"), tapped(0.02) as tap:
            ask("SELECT set_config('idle_in_transaction_session_timeout', '1ms', false)")
            tap.take()
            with pytest.raises(StoreBusy):
                once(lease=lease)
            assert verbs(tap.take())[0] == ["BEGIN"]
        assert not Order.objects.exists()
        assert once(lease=lease).replayed is False

    def test_a_duplicate_that_waits_has_no_transaction_that_could_last_too_long(
        self, in_threads: Callable[..., list[Any]]
    ) -> None:
        """It asks again and again, each time in another one. Its session goes on."""
        has_setting("transaction_timeout")
        running, sessions = Event(), Queue[int]()
        lasts = "SELECT clock_timestamp() > backend_start + interval '500 ms' FROM pg_stat_activity WHERE pid = {}"

        def work() -> int:
            running.set()
            duplicate = lasts.format(sessions.get(timeout=DEADLINE))
            elsewhere(lambda: eventually("the duplicate to wait for longer", lambda: ask(duplicate) != (False,)))
            return Order.objects.create().pk

        def wait() -> list[Any]:
            assert running.wait(DEADLINE), "the first never began"
            ask("SELECT set_config('transaction_timeout', '250ms', false)")
            (before,) = ask("SELECT pg_backend_pid()")
            sessions.put(before)
            replayed = once(wait=DEADLINE).replayed
            return [replayed, ask("SELECT pg_backend_pid()") == (before,)]

        def first_or_wait(number: int) -> Any:
            return wait() if number else once(work).replayed

        assert in_threads(2, first_or_wait) == [False, [True, True]]
        assert Order.objects.count() == 1
