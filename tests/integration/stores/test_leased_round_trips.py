"""Leased mode: how many messages its steps take, and what becomes of a step whose answer is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from django.test.utils import CaptureQueriesContext

from django_idempotency import Operation, run_once
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.http import post_empty
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.leases import breaks, lapse, row
from tests.shopapp.models import Order
from tests.tap import Tap, tapped, verbs, watched
from tests.works import RUNS, pay

Post = Callable[..., Any]
pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.integration.leased_urls"),
]
CLAIM, START, FINISH, WRITE, COMPLETE = (
    [["INSERT"]],
    [["WITH"]],
    [["UPDATE"]],
    [["BEGIN", "INSERT"], ["INSERT"], ["WITH", "COMMIT"]],
    [["UPDATE"]],
)
TOGETHER = CLAIM + START + FINISH + WRITE + COMPLETE
WRITE_APART = [["BEGIN"], ["INSERT"], ["INSERT"], ["UPDATE"], ["COMMIT"]]
APART = CLAIM + START + FINISH + WRITE_APART + COMPLETE
DUPLICATE = [["INSERT"], ["SELECT"]]
NEXT_ATTEMPT = [["BEGIN"], ["INSERT"], ["SELECT"], ["SELECT"], ["SELECT"], ["UPDATE"], ["COMMIT"]]
READ_STEPS = [["SELECT"]]


@pytest.fixture
def tap() -> Iterator[Tap]:
    with tapped() as tap:
        yield tap


@pytest.fixture(autouse=True)
def _clean() -> None:
    GATEWAY.reset()
    HOOKS.clear()
    RUNS.clear()


class TestHowMany:
    def test_a_call_and_a_write_take_seven(self, tap: Tap, post: Post) -> None:
        """Claim, start, finish, completion, and the three of the write: BEGIN, INSERT, COMMIT."""
        assert post("/pay").status_code == 201
        assert verbs(tap.take()) == TOGETHER
        assert len(TOGETHER) == 7

    def test_a_duplicate_takes_two(self, tap: Tap, post: Post) -> None:
        """A replay and a mismatch."""
        post("/pay")
        tap.take()
        assert post("/pay").headers["Idempotency-Replayed"] == "true"
        assert verbs(tap.take()) == DUPLICATE
        assert post("/pay", {"another": "body"}).status_code == 422
        assert verbs(tap.take()) == DUPLICATE

    def test_a_conflict_takes_two(self, tap: Tap, post: Post) -> None:
        """While the first request is in the middle of its work."""
        seen: list[Any] = []

        def compete(operation: Operation) -> None:
            tap.take()
            seen.append((post("/pay").status_code, verbs(tap.take())))

        HOOKS["between"] = compete
        assert post("/pay").status_code == 201
        assert seen == [(409, DUPLICATE)]

    def test_run_once_takes_the_same(self, tap: Tap) -> None:
        """The claim, the steps and the completion; a duplicate."""
        for expected in (TOGETHER, DUPLICATE):
            run_once(pay, scope="s", key="k", lease=60, operation="pay")
            assert verbs(tap.take()) == expected

    def test_a_call_that_breaks_and_its_retry(self, tap: Tap, key: str) -> None:
        """Its error and the failure of the key take one each. The claim of the next attempt is a transaction.

        The steps are read once, for `reconcile` and for the view.
        """
        GATEWAY.before = breaks
        assert post_empty(key).status_code == 500
        assert verbs(tap.take()) == [*CLAIM, *START, ["UPDATE"], ["UPDATE"]]
        GATEWAY.reset()
        assert post_empty(key).status_code == 201
        assert verbs(tap.take()) == DUPLICATE + NEXT_ATTEMPT + READ_STEPS + START + FINISH + WRITE + COMPLETE

    def test_with_binding_on_the_server(self, post: Post) -> None:
        """One statement in each message is all that this protocol takes: the write has its BEGIN and COMMIT apart."""
        with tapped(OPTIONS={"server_side_binding": True}) as tap:
            assert post("/pay").status_code == 201
            assert verbs(tap.take()) == APART
            assert post("/pay").headers["Idempotency-Replayed"] == "true"

    @pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
    def test_with_another_isolation(self, post: Post, level: IsolationLevel) -> None:
        """The write runs in it. The other steps have no transaction to set it for."""
        with tapped(OPTIONS={"isolation_level": level}) as tap:
            assert post("/pay").status_code == 201
            write = [["BEGIN"], ["INSERT"], ["INSERT"], ["WITH", "COMMIT"]]
            assert verbs(tap.take()) == CLAIM + START + FINISH + write + COMPLETE
            assert post("/pay").headers["Idempotency-Replayed"] == "true"


class TestNobodyCanTell:
    def test_execute_wrappers_see_each_statement_by_itself(self, tap: Tap, post: Post) -> None:
        """Also those that commit by themselves."""
        with watched() as seen:
            post("/pay")
        assert verbs(tap.take()) == APART
        assert seen == [verb for [verb] in APART if verb not in {"BEGIN", "COMMIT"}]

    def test_the_query_log_has_each_statement_by_itself(self, tap: Tap, post: Post) -> None:
        with CaptureQueriesContext(connection) as captured:
            post("/pay")
        assert [query["sql"].split()[0] for query in captured] == [verb for [verb] in APART]

    def test_no_transaction_is_open_between_the_steps(self, tap: Tap, post: Post) -> None:
        """Neither for Django nor for the driver."""
        states: list[Any] = []

        def look() -> None:
            raw: Any = connection.connection
            states.append((connection.in_atomic_block, raw.autocommit, raw.info.transaction_status.name))

        GATEWAY.before = look
        HOOKS["between"] = HOOKS["at the end"] = lambda operation: look()
        assert post("/pay").status_code == 201
        assert states == [(False, True, "IDLE")] * 3


class TestLostAnswers:
    """The server has done what the message says, and the connection breaks. See Note [Lost answers]."""

    @pytest.mark.parametrize(
        ("message", "status", "kept", "attempt"),
        [
            pytest.param(1, 500, "in_progress", 2, id="claim"),
            pytest.param(2, 500, "failed", 2, id="start of the call"),
            pytest.param(3, 201, "completed", 1, id="end of the call"),
            pytest.param(4, 500, "failed", 2, id="beginning of the write"),
            pytest.param(5, 500, "failed", 2, id="inside the write"),
            pytest.param(6, 500, "failed", 2, id="end of the write"),
            pytest.param(7, 201, "completed", 1, id="completion"),
        ],
    )
    def test_nothing_happens_twice(
        self, tap: Tap, key: str, message: int, status: int, kept: str, attempt: int
    ) -> None:
        """One charge and one order, whichever answer is lost; the client gets its answer, at the latest by a retry."""
        tap.lose_answer(message)
        assert post_empty(key).status_code == status
        assert row().status == kept
        lapse()
        assert post_empty(key).json()["attempt"] == attempt
        assert (GATEWAY.calls, len(GATEWAY.charges), Order.objects.count()) == (1, 1, 1)

    def test_held_a_call_is_in_doubt_from_its_start_on(self, tap: Tap, key: str) -> None:
        """The worker does not know whether the start was committed. Nothing is called before that is certain."""
        tap.lose_answer(2)
        assert post_empty(key, "/pay/hold").status_code == 500
        assert post_empty(key, "/pay/hold").json()["title"] == "The outcome for this Idempotency-Key is unknown"
        assert GATEWAY.calls == 0

    def test_a_claim_drops_a_broken_connection(self, tap: Tap) -> None:
        """A worker that lives long has no end of a request, at which Django would drop the connection."""
        connection.ensure_connection()
        tap.cut()
        with pytest.raises(OperationalError):
            run_once(pay, scope="s", key="k", lease=60, operation="pay")
        assert run_once(pay, scope="s", key="k", lease=60, operation="pay").replayed is False

    def test_a_connection_that_cannot_be_opened_is_an_error(self, tap: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of the database, as everywhere else."""
        connection.close()
        monkeypatch.setitem(connection.settings_dict, "HOST", "/nowhere")
        with pytest.raises(OperationalError):
            run_once(pay, scope="s", key="k", lease=60, operation="pay")
        assert connection.connection is None

    def test_the_end_of_a_call_may_be_sent_twice(self, tap: Tap) -> None:
        """The second finds the first one's result, and leaves it."""
        store = store_for("default")

        def work(operation: Operation) -> Any:
            value = operation.call("charge", lambda: 1)
            store.journal.finish_call(operation._claim, "charge", '{"value": 2}')
            return value

        assert run_once(work, scope="s", key="k", lease=60, operation="o").value == 1
        assert IdempotencyKey.objects.get().steps.get().result == '{"value": 1}'
