"""The signal and the log records: what happened to a key, told once it is true."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from django_idempotency import Operation, OperationInProgress, OutcomeUnknown, PayloadMismatch, StoreBusy, run_once
from django_idempotency.maintenance import cleanup_idempotency_keys, release_for_retry
from django_idempotency.models import IdempotencyKey
from django_idempotency.signals import key_event
from tests.factories import UserFactory
from tests.heard import heard
from tests.leased_urls import HOOKS, leave_in_doubt
from tests.leases import Broken, as_if_killed, breaks, row
from tests.shopapp.models import Order

Post = Callable[..., Any]
Told = Callable[[], list[tuple[Any, ...]]]
Log = pytest.LogCaptureFixture
views = pytest.mark.urls("tests.view_urls")
leased = pytest.mark.urls("tests.leased_urls")
pytestmark = pytest.mark.django_db(transaction=True)
CLAIMED, COMPLETED, REPLAYED = ("claimed", 1, ""), ("completed", None, ""), ("replayed", None, "")


@pytest.fixture
def told() -> Iterator[Told]:
    """Event, attempt and reason of what was told since the last look."""

    def no_transaction_is_open(sender: Any, **kwargs: Any) -> None:
        assert sender is IdempotencyKey
        assert not connection.in_atomic_block

    key_event.connect(no_transaction_is_open)
    with heard() as events:

        def taken() -> list[tuple[Any, ...]]:
            assert {event["using"] for event in events} <= {"default"}
            found = [(event["event"], event["attempt"], event["reason"]) for event in events]
            events.clear()
            return found

        yield taken
    key_event.disconnect(no_transaction_is_open)


def once(work: Any = lambda: 1, **options: Any) -> Any:
    return run_once(work, scope="s", key="k", operation="o", **options).value


def levels(log: Log, event: str) -> list[str]:
    return [record.levelname for record in log.records if vars(record).get("event") == event]


@views
class TestAtomic:
    def test_a_request_is_told_after_its_end(self, post: Post, told: Told) -> None:
        """Of a first request the claim, too; of a retry and of another payload, what they came to."""
        post("/create", {"amount": 1})
        assert told() == [CLAIMED, COMPLETED]
        post("/create", {"amount": 1})
        assert told() == [REPLAYED]
        post("/create", {"amount": 2})
        assert told() == [("mismatched", None, "")]

    @pytest.mark.parametrize(("status", "claimed"), [(401, [CLAIMED]), (429, [CLAIMED]), (503, [])])
    def test_an_answer_that_is_not_final_releases(
        self, post: Post, told: Told, status: int, claimed: list[Any]
    ) -> None:
        """A claim that is rolled back, with a server error, was never made."""
        post(f"/answer?status={status}")
        assert told() == [*claimed, ("released", None, f"The view answered {status}.")]

    def test_an_exception_is_told_without_its_message(self, post: Post, told: Told) -> None:
        """What it says may quote the client."""
        with pytest.raises(ValueError, match="the view fails"):
            post("/fail")
        assert told() == [("released", None, "ValueError")]

    def test_a_claim_whose_commit_fails_is_not_told(self, post: Post, told: Told) -> None:
        """On MariaDB the foreign key fails in the view already, which is a release."""
        with pytest.raises(Exception, match=r"(?i)foreign key"):
            post("/fail_at_commit")
        assert not {"completed", "claimed"} & {event for event, _, _ in told()}

    def test_an_error_after_the_commit_is_no_release(self, post: Post, told: Told) -> None:
        """Of a callback of `on_commit`: the key is completed."""
        with pytest.raises(IndexError):
            post("/fail_after_commit")
        assert "released" not in {event for event, _, _ in told()}


class TestOnce:
    def test_inside_a_transaction_nothing_is_told_before_it_commits(self, told: Told) -> None:
        """The caller may still roll back: then it is as if nothing had been."""
        with transaction.atomic():
            once()
            transaction.set_rollback(True)
        assert told() == []
        with transaction.atomic():
            assert once() == once()
            assert told() == []
        assert told() == [CLAIMED, COMPLETED, REPLAYED]

    def test_an_error_inside_a_transaction_is_a_release(self, told: Told) -> None:
        """The caller may catch it, and commit."""
        with transaction.atomic(), pytest.raises(Broken):
            once(breaks)
        assert told() == [("released", None, "tests.leases.Broken")]

    def test_a_pause_is_told(self, told: Told, settings: Any) -> None:
        settings.IDEMPOTENCY = {"PAUSED": True}
        with pytest.raises(StoreBusy, match="is on, so o did not run"):
            once()
        assert told() == [("paused", None, "")]

    def test_a_duplicate_of_running_work_conflicts(self, told: Told, in_threads: Any) -> None:
        """It is told by the duplicate, while the first is at work."""
        if connection.vendor == "sqlite":
            pytest.skip("on SQLite one transaction locks the whole database, and a duplicate is told nothing")

        def again(number: int) -> None:
            with pytest.raises(OperationInProgress):
                once()

        def duplicate() -> str:
            in_threads(1, again)
            assert told() == [("conflicted", None, "")]
            return "once"

        once(duplicate)

    def test_a_receiver_gets_the_identity(self) -> None:
        """Scope, operation and key, and a name for the logs: the first 8 bytes of SHA-256("evt_1")."""
        with heard("completed") as events:
            run_once(lambda: 1, scope="s", key="evt_1", operation="o")
        about = events[0]["identity"]
        assert (about.scope, about.operation, about.key) == ("s", "o", "evt_1")
        assert about.reference == "7d4e5a76eae6d8c1"


class Raising:
    """A receiver without a name of its own."""

    def __call__(self, **kwargs: Any) -> None:
        raise RuntimeError("the receiver fails")


class TestHarm:
    """What listens runs after the commit: it must not take away what else does, nor the answer, nor tell the key."""

    @pytest.fixture(params=["receiver", "log"])
    def _failing(self, request: pytest.FixtureRequest, caplog: Log) -> Iterator[None]:
        """A receiver that Django cannot name when it logs the error, or a filter of the log, which nobody catches."""
        failing = Raising()
        if request.param == "receiver":
            key_event.connect(failing)
            yield
            key_event.disconnect(failing)
        else:
            logger = logging.getLogger("django_idempotency")
            caplog.set_level(logging.DEBUG, "django_idempotency")
            logger.filters.append(lambda record: failing())
            yield
            logger.filters.clear()

    @pytest.mark.usefixtures("_failing")
    def test_the_work_and_its_own_callbacks_stay(self, caplog: Log, capfd: pytest.CaptureFixture[str]) -> None:
        """The mail that the work sends on commit is sent, and nothing that is logged holds the key."""
        sent: list[str] = []

        def work() -> int:
            transaction.on_commit(lambda: sent.append("mail"))
            return 1

        for _ in range(2):
            assert run_once(work, scope="the scope", key="the-key", operation="o").value == 1
        assert sent == ["mail"]
        told = caplog.text + capfd.readouterr().err
        assert "the receiver fails" in told
        assert not any(secret in told for secret in ("the-key", "the scope"))

    @leased
    @pytest.mark.usefixtures("_failing")
    def test_a_leased_view_runs_and_is_kept_and_a_cleanup_ends(self, post: Post) -> None:
        """Its key does not wait for its lease."""
        assert post("/pay").status_code == post("/pay").status_code == 201
        assert IdempotencyKey.objects.get().status == "completed"
        assert cleanup_idempotency_keys().complete

    @leased
    def test_a_receiver_that_ends_the_worker_releases_the_key(self, post: Post) -> None:
        """As a server does in any line of Python with a worker that takes too long: the next retry runs at once."""

        def end(event: str, **kwargs: Any) -> None:
            if event == "claimed":
                raise SystemExit(1)

        key_event.connect(end)
        try:
            with pytest.raises(SystemExit):
                post("/pay")
        finally:
            key_event.disconnect(end)
        assert IdempotencyKey.objects.get().status == "failed"


@leased
class TestLeased:
    def test_a_failure_releases_and_the_retry_claims_again(self, post: Post, told: Told) -> None:
        """With the next attempt's number, and without the message of the error."""
        HOOKS["between"] = breaks
        with pytest.raises(Broken, match="it broke"):
            post("/pay")
        HOOKS.clear()
        post("/pay")
        assert told() == [CLAIMED, ("released", None, "tests.leases.Broken"), ("claimed", 2, ""), COMPLETED]

    def test_an_abandoned_key_is_taken_over(self, post: Post, told: Told) -> None:
        """Told instead of the claim."""
        HOOKS["between"] = breaks
        with pytest.raises(Broken):
            post("/pay")
        as_if_killed()
        HOOKS.clear()
        told()
        post("/pay")
        assert told() == [("taken_over", 2, ""), COMPLETED]

    def test_a_doubt_is_one_error_however_often_the_client_retries(self, post: Post, caplog: Log) -> None:
        """The next attempt that ends in doubt is the next error."""
        caplog.set_level(logging.INFO, "django_idempotency")
        for attempt in (1, 2):
            leave_in_doubt(post)
            assert [post("/pay/hold").status_code for _ in range(3)] == [409, 409, 409]
            assert levels(caplog, "held") == ["ERROR", "INFO", "INFO"] * attempt
            release_for_retry(row())

    @pytest.mark.django_db(databases=["default", "other"], transaction=True)
    @pytest.mark.parametrize("other", [{"key": "k2"}, {"scope": "s2"}, {"operation": "o2"}, {"using": "other"}])
    def test_a_doubt_about_another_key_is_an_error_of_its_own(self, caplog: Log, other: dict[str, str]) -> None:
        """Also of the same key in another scope, operation or database."""
        about: dict[str, Any] = {"scope": str(uuid4()), "key": "k", "operation": "o", "lease": 60}
        for of in (about, {**about, **other}):
            with pytest.raises(Broken):
                run_once(lambda operation: operation.call("charge", breaks), on_abandoned="hold", **of)
            with pytest.raises(OutcomeUnknown):
                run_once(lambda operation: 1, on_abandoned="hold", **of)
        assert levels(caplog, "held") == ["ERROR", "ERROR"]

    def test_each_event_names_the_resource_and_the_database(self, caplog: Log) -> None:
        """What the work refers to is told from the release on: of atomic mode, of the retry and of a replay."""
        caplog.set_level(logging.INFO, "django_idempotency")

        def fails(operation: Operation) -> None:
            operation.refer_to("order", 7)
            operation.call("charge", int)
            raise Broken("it broke")

        about: dict[str, Any] = {"scope": "s", "key": uuid4(), "operation": "o"}
        with heard() as events:
            for _ in range(2):
                with pytest.raises(Broken):
                    run_once(fails, lease=60, **about)
                for _ in range(2):
                    with pytest.raises(OutcomeUnknown):
                        run_once(lambda: 1, **about)
            for _ in range(2):
                run_once(lambda operation: operation.call("charge", int), lease=60, **about)
        order = ("order", "7")
        failed = [("released", order), ("held", order), ("held", order)]
        of_the_retry = [("claimed", order), ("completed", order), ("replayed", order)]
        assert [(event["event"], event["resource"]) for event in events] == [
            ("claimed", None), *failed, ("claimed", order), *failed, *of_the_retry
        ]  # fmt: skip
        assert {(event["using"], event["backend"]) for event in events} == {("default", None)}
        assert levels(caplog, "held") == ["ERROR", "INFO"] * 2

    def test_a_call_that_is_not_made_again_is_told_as_held(self, caplog: Log) -> None:
        """With what the work refers to. Each attempt that comes as far is an error of its own."""
        caplog.set_level(logging.INFO, "django_idempotency")

        def pays(operation: Operation) -> None:
            operation.refer_to("order", 7)
            if operation.attempt == 1:
                operation.derive_key("charge")
            operation.call("charge", breaks)

        with heard("held") as events:
            for error in (Broken, OutcomeUnknown, OutcomeUnknown):
                with pytest.raises(error):
                    once(pays, lease=60)
        assert [event["resource"] for event in events] == [("order", "7")] * 2
        assert levels(caplog, "held") == ["ERROR"] * 2


class TestPurged:
    def test_a_cleanup_tells_and_logs_what_it_did(self, caplog: Log) -> None:
        """Once, at its end, with its numbers as fields of the record."""
        once()
        IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
        caplog.set_level(logging.INFO, "django_idempotency")
        with heard() as events:
            cleanup_idempotency_keys()
        (event,) = events
        assert (event["event"], event["using"], event["cleanup"].deleted) == ("purged", "default", 1)
        assert (event["identity"], event["attempt"], event["reason"], event["resource"]) == (None, None, "", None)
        assert event["backend"] is None
        (record,) = caplog.records
        assert record.getMessage() == (
            "Idempotency keys of default: 1 deleted, 0 unstuck, 0 stuck, 0 in doubt, 0 half done."
        )
        counted = {"deleted": 1, "stuck": 0, "in_doubt": 0}
        facts = {"event": "purged", "database": "default", **counted}
        assert {name: vars(record)[name] for name in facts} == facts


class TestLog:
    def test_a_record_has_fields_and_names_the_key_by_its_reference(self, caplog: Log) -> None:
        """Neither the key nor the scope nor a body is in it."""
        caplog.set_level(logging.DEBUG, "django_idempotency")
        run_once(lambda: "the body", scope="the scope", key="evt_1", operation="the operation", payload={"a": "b"})
        claimed, completed = caplog.records
        assert claimed.getMessage() == "Idempotency key 7d4e5a76eae6d8c1 of the operation: claimed."
        assert [claimed.levelname, completed.levelname] == ["DEBUG", "INFO"]
        fields = ("event", "operation", "key_reference", "database", "attempt", "reason")
        of_the_claim = ["claimed", "the operation", "7d4e5a76eae6d8c1", "default", 1, ""]
        assert [vars(claimed)[name] for name in fields] == of_the_claim
        everything = str([vars(record) for record in caplog.records])
        assert not any(secret in everything for secret in ("evt_1", "the scope", "the body", "'b'"))

    @pytest.mark.parametrize(("payload", "event"), [(1, "replayed"), (2, "mismatched")])
    def test_what_a_client_can_do_at_will_is_no_warning(self, caplog: Log, payload: int, event: str) -> None:
        """A replay is what the package is for; another payload is a client's mistake, as often as it likes."""
        once(Order.objects.count, payload=1)
        caplog.set_level(logging.INFO, "django_idempotency")
        if event == "mismatched":
            with pytest.raises(PayloadMismatch):
                once(Order.objects.count, payload=payload)
        else:
            once(Order.objects.count, payload=payload)
        assert levels(caplog, event) == ["INFO"]


# --- requests that are refused without a claim


def _error(request: Any, problem: Any) -> HttpResponse:
    return HttpResponse(problem.code, status=problem.status)


@pytest.mark.urls("tests.view_urls")
@pytest.mark.parametrize("format_", [None, _error])
@pytest.mark.parametrize(("key", "event"), [(None, "missing"), ("a secret", "invalid")])
@pytest.mark.usefixtures("atomic_requests")
def test_a_request_without_a_usable_key_is_told(
    post: Post, key: str | None, event: str, format_: Any, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In the project's own format of errors, too, and also under ATOMIC_REQUESTS. Only the operation is known."""
    settings.IDEMPOTENCY = {"ERROR_RESPONSE": format_}
    caplog.set_level(logging.INFO, "django_idempotency")
    with heard() as events:
        assert post("/create", key=key).status_code == 400
    (told,) = events
    about = told["identity"]
    assert (told["event"], told["attempt"], told["reason"]) == (event, None, "")
    assert (told["using"], told["backend"]) == ("default", None)
    assert (about.operation, about.scope, about.key, about.reference) == ("POST create", "", "", "")
    (record,) = (record for record in caplog.records if record.name == "django_idempotency")
    assert record.getMessage() == f"Idempotency key (none) of POST create: {event}."
    assert (record.levelname, vars(record)["key_reference"]) == ("INFO", "")
    assert "secret" not in str(vars(record))


@pytest.mark.urls("tests.view_urls")
def test_a_replay_that_the_project_keeps_back_is_told(post: Post) -> None:
    """It is no replay."""
    client = Client()
    client.force_login(UserFactory())
    post("/mine", client=client)
    with heard() as events:
        assert post("/mine", client=client, headers={"X-Denied": "1"}).status_code == 403
    assert [(event["event"], event["using"]) for event in events] == [("replay_refused", "default")]
