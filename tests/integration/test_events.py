"""Signals and log records: what happened to a key, told once it is true."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.dispatch import Signal
from django.utils import timezone

from django_idempotency import OperationInProgress, PayloadMismatch, run_once, signals
from django_idempotency.engine.protocol.digests import key_hash
from django_idempotency.maintenance.cleanup import cleanup_idempotency_keys
from django_idempotency.models import IdempotencyKey
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, as_if_killed, breaks
from tests.shopapp.models import Order

Post = Callable[..., Any]
Heard = list[tuple[Any, ...]]
views = pytest.mark.urls("tests.integration.view_urls")
leased = pytest.mark.urls("tests.integration.leased_urls")
pytestmark = pytest.mark.django_db(transaction=True)
KEYED = {name: value for name, value in vars(signals).items() if isinstance(value, Signal) and name != "keys_purged"}


@pytest.fixture(autouse=True)
def _clean() -> None:
    GATEWAY.reset()
    HOOKS.clear()


@pytest.fixture
def heard() -> Iterator[Heard]:
    """The name of each signal, what its attempt and reason are, and whether a transaction is open."""
    told: Heard = []

    def receiver(name: str) -> Callable[..., None]:
        def receive(sender: Any, attempt: Any, reason: Any, **kwargs: Any) -> None:
            assert sender is IdempotencyKey
            assert kwargs["identity"] is not None
            assert kwargs["using"] == "default"
            assert not connection.in_atomic_block
            told.append((name, attempt, reason))

        return receive

    receivers = {name: receiver(name) for name in KEYED}
    for name, signal in KEYED.items():
        signal.connect(receivers[name])
    yield told
    for name, signal in KEYED.items():
        signal.disconnect(receivers[name])


CLAIMED, COMPLETED = ("key_claimed", 1, ""), ("key_completed", None, "")


@views
class TestAtomic:
    def test_a_first_request_claims_and_completes(self, post: Post, heard: Heard) -> None:
        """After the commit, in this order."""
        post("/create")
        assert heard == [CLAIMED, COMPLETED]

    def test_a_retry_is_replayed(self, post: Post, heard: Heard) -> None:
        """Nothing is claimed again."""
        post("/create")
        heard.clear()
        post("/create")
        assert heard == [("key_replayed", None, "")]

    def test_another_payload_is_a_mismatch(self, post: Post, heard: Heard) -> None:
        """Of the request that comes second."""
        post("/create", {"amount": 1})
        heard.clear()
        post("/create", {"amount": 2})
        assert heard == [("key_mismatched", None, "")]

    @pytest.mark.parametrize("status", [401, 429])
    def test_a_refusal_that_is_not_final_releases(self, post: Post, heard: Heard, status: int) -> None:
        """The writes were committed, and the key is free."""
        post(f"/answer?status={status}")
        assert heard == [CLAIMED, ("key_released", None, f"The view answered {status}.")]

    def test_a_server_error_was_never_claimed(self, post: Post, heard: Heard) -> None:
        """It was rolled back: only the release is told."""
        post("/answer?status=503")
        assert heard == [("key_released", None, "The view answered 503.")]

    def test_an_exception_is_told_without_its_message(self, post: Post, heard: Heard) -> None:
        """What it says may quote the client."""
        with pytest.raises(ValueError, match="the view fails"):
            post("/fail")
        assert heard == [("key_released", None, "ValueError")]

    def test_a_claim_whose_commit_fails_is_not_told(self, post: Post, heard: Heard) -> None:
        """On MariaDB the foreign key fails in the view already, which is a release."""
        with pytest.raises(Exception, match=r"(?i)foreign key"):
            post("/fail_at_commit")
        assert "key_completed" not in [name for name, _, _ in heard]
        assert "key_claimed" not in [name for name, _, _ in heard]

    def test_an_error_after_the_commit_is_no_release(self, post: Post, heard: Heard) -> None:
        """Of a callback of `on_commit`: the key is completed."""
        with pytest.raises(IndexError):
            post("/fail_after_commit")
        assert "key_released" not in [name for name, _, _ in heard]


class TestOnce:
    def test_inside_a_transaction_nothing_is_told_before_it_commits(self, heard: Heard) -> None:
        """The caller may still roll back."""
        with transaction.atomic():
            run_once(lambda: 1, scope="s", key="k", operation="o")
            run_once(lambda: 1, scope="s", key="k", operation="o")
            assert heard == []
        assert heard == [CLAIMED, COMPLETED, ("key_replayed", None, "")]

    def test_what_is_rolled_back_is_not_told(self, heard: Heard) -> None:
        """As if it had not been."""
        with transaction.atomic():
            run_once(lambda: 1, scope="s", key="k", operation="o")
            transaction.set_rollback(True)
        assert heard == []

    def test_an_error_inside_a_transaction_is_a_release(self, heard: Heard) -> None:
        """The caller may catch it, and commit."""
        with transaction.atomic(), pytest.raises(Broken):
            run_once(breaks, scope="s", key="k", operation="o")
        assert heard == [("key_released", None, "tests.leases.Broken")]

    def test_a_duplicate_of_running_work_conflicts(self, heard: Heard, in_threads: Any) -> None:
        """It is told by the duplicate, while the first is at work."""

        def duplicate() -> str:
            def again(number: int) -> None:
                with pytest.raises(OperationInProgress):
                    run_once(lambda: "twice", scope="s", key="k", operation="o")

            in_threads(1, again)
            assert heard == [("key_conflicted", None, "")]
            return "once"

        if connection.vendor == "sqlite":
            pytest.skip("on SQLite one transaction locks the whole database, and a duplicate is told nothing")
        run_once(duplicate, scope="s", key="k", operation="o")

    def test_a_receiver_gets_the_identity(self) -> None:
        """Scope, operation and key, and a name for the logs."""
        got: list[Any] = []

        def receive(identity: Any, **kwargs: Any) -> None:
            got.append((identity.scope, identity.operation, identity.key, identity.reference))

        signals.key_completed.connect(receive)
        try:
            run_once(lambda: 1, scope="s", key="evt_1", operation="o")
        finally:
            signals.key_completed.disconnect(receive)
        # The first 8 bytes of SHA-256("evt_1").
        assert got == [("s", "o", "evt_1", "7d4e5a76eae6d8c1")]

    def test_a_receiver_that_raises_does_no_harm(self, caplog: pytest.LogCaptureFixture) -> None:
        """The work is done and kept; Django logs the error."""

        def receive(**kwargs: Any) -> None:
            raise RuntimeError("the receiver fails")

        signals.key_completed.connect(receive)
        try:
            assert run_once(lambda: 1, scope="s", key="k", operation="o").value == 1
        finally:
            signals.key_completed.disconnect(receive)
        assert run_once(lambda: 2, scope="s", key="k", operation="o").value == 1
        assert [record.name for record in caplog.records] == ["django.dispatch"]


class Raising:
    """A receiver without a name of its own."""

    def __call__(self, **kwargs: Any) -> None:
        raise RuntimeError("the receiver fails")


class TestHarm:
    """What listens runs after the commit: it must not take away what else does, nor the answer, nor tell the key."""

    @pytest.fixture(params=["receiver", "log"])
    def _failing(self, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        """A receiver that Django cannot name when it logs the error, or a filter of the log, which nobody catches."""
        if request.param == "receiver":
            receiver = Raising()
            for signal in KEYED.values():
                signal.connect(receiver)
            yield
            for signal in KEYED.values():
                signal.disconnect(receiver)
        else:
            logger = logging.getLogger("django_idempotency")
            caplog.set_level(logging.DEBUG, "django_idempotency")
            filter_ = Raising()
            logger.filters.append(lambda record: filter_())
            yield
            logger.filters.clear()

    @pytest.mark.usefixtures("_failing")
    def test_the_work_and_its_own_callbacks_stay(
        self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
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
    def test_a_leased_view_runs_and_is_kept(self, post: Post) -> None:
        """Its key does not wait for its lease."""
        assert post("/pay").status_code == post("/pay").status_code == 201
        assert IdempotencyKey.objects.get().status == "completed"

    @pytest.mark.usefixtures("_failing")
    def test_a_cleanup_ends(self) -> None:
        """And says what it deleted."""
        signals.keys_purged.connect(receiver := Raising())
        try:
            assert cleanup_idempotency_keys().complete
        finally:
            signals.keys_purged.disconnect(receiver)

    @leased
    def test_a_receiver_that_ends_the_worker_releases_the_key(self, post: Post) -> None:
        """As a server does in any line of Python with a worker that takes too long: the next retry runs at once."""

        def end(**kwargs: Any) -> None:
            raise SystemExit(1)

        signals.key_claimed.connect(end)
        try:
            with pytest.raises(SystemExit):
                post("/pay")
        finally:
            signals.key_claimed.disconnect(end)
        assert IdempotencyKey.objects.get().status == "failed"


@leased
class TestLeased:
    def test_a_first_request_claims_before_the_view_runs(self, post: Post, heard: Heard) -> None:
        """Its claim has been committed by then."""
        before: Heard = []
        GATEWAY.before = lambda: before.extend(heard)
        post("/pay")
        assert before == [CLAIMED]
        assert heard == [CLAIMED, COMPLETED]

    def test_a_failure_releases_and_the_retry_claims_again(self, post: Post, heard: Heard) -> None:
        """With the next attempt's number, and without the message of the error."""
        HOOKS["between"] = breaks
        with pytest.raises(Exception, match="it broke"):
            post("/pay")
        HOOKS.clear()
        post("/pay")
        broken = f"{breaks.__module__}.Broken"
        assert heard == [CLAIMED, ("key_released", None, broken), ("key_claimed", 2, ""), COMPLETED]

    def test_an_abandoned_key_is_taken_over(self, post: Post, heard: Heard) -> None:
        """Told instead of the claim."""
        HOOKS["between"] = breaks
        with pytest.raises(Exception, match="it broke"):
            post("/pay")
        as_if_killed()
        HOOKS.clear()
        heard.clear()
        post("/pay")
        assert heard == [("key_taken_over", 2, ""), COMPLETED]

    def test_a_key_in_doubt_is_held(self, post: Post, heard: Heard) -> None:
        """Every retry that is refused tells so."""
        GATEWAY.before = breaks
        with pytest.raises(Exception, match="it broke"):
            post("/pay/hold")
        heard.clear()
        post("/pay/hold")
        assert heard == [("key_held", None, "")]

    def test_what_a_person_has_decided_elsewhere_is_told_as_the_loser_sees_it(self, post: Post, heard: Heard) -> None:
        """A worker whose key was completed meanwhile delivers a replay."""

        def overtaken(operation: Any) -> None:
            IdempotencyKey.objects.update(
                status="completed", status_code=200, body=b"", headers="[]", locked_until=None
            )

        HOOKS["between"] = overtaken
        assert post("/pay").status_code == 200
        assert heard == [CLAIMED, ("key_replayed", None, "")]


class TestPurged:
    def test_a_cleanup_tells_what_it_did(self) -> None:
        """Once, at its end."""
        got: list[Any] = []

        def receive(sender: Any, using: str, cleanup: Any, **kwargs: Any) -> None:
            got.append((sender, using, cleanup.deleted))

        run_once(lambda: 1, scope="s", key="k", operation="o")
        IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
        signals.keys_purged.connect(receive)
        try:
            cleanup_idempotency_keys()
        finally:
            signals.keys_purged.disconnect(receive)
        assert got == [(IdempotencyKey, "default", 1)]

    def test_a_cleanup_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        """With its numbers as fields."""
        caplog.set_level(logging.INFO, "django_idempotency")
        cleanup_idempotency_keys()
        (record,) = caplog.records
        assert record.getMessage() == (
            "Idempotency keys of default: 0 deleted, 0 given up, 0 unstuck, 0 stuck, 0 in doubt, 0 half done."
        )
        counted = {"deleted": 0, "given_up": 0, "stuck": 0, "in_doubt": 0}
        assert {name: vars(record)[name] for name in ("event", *counted)} == {"event": "purged", **counted}
        assert vars(record)["database"] == "default"


class TestLog:
    def test_a_record_has_fields_and_names_the_key_by_its_reference(self, caplog: pytest.LogCaptureFixture) -> None:
        """Neither the key nor the scope nor a body is in it."""
        caplog.set_level(logging.DEBUG, "django_idempotency")
        run_once(lambda: "the body", scope="the scope", key="the-key", operation="the operation", payload={"a": "b"})
        claimed, completed = caplog.records
        reference = f"{key_hash('the-key') & (2**64 - 1):016x}"
        assert claimed.getMessage() == f"Idempotency key {reference} of the operation: claimed."
        assert [claimed.levelname, completed.levelname] == ["DEBUG", "INFO"]
        fields = ("event", "operation", "key_reference", "database", "attempt", "reason")
        assert [vars(claimed)[name] for name in fields] == ["claimed", "the operation", reference, "default", 1, ""]
        everything = str([vars(record) for record in caplog.records])
        assert not any(secret in everything for secret in ("the-key", "the scope", "the body", "'b'"))

    @pytest.mark.parametrize("amount", [1, 2], ids=["replayed", "mismatched"])
    @views
    def test_what_a_client_can_do_at_will_is_no_warning(
        self, post: Post, caplog: pytest.LogCaptureFixture, amount: int
    ) -> None:
        """A replay is what the package is for; another payload is a client's mistake, as often as it likes."""
        post("/create", {"a": 1})
        caplog.clear()
        caplog.set_level(logging.INFO, "django_idempotency")
        post("/create", {"a": amount})
        assert [r.levelname for r in caplog.records if r.name == "django_idempotency"] == ["INFO"]

    def test_a_release_says_why(self, caplog: pytest.LogCaptureFixture) -> None:
        """By the class of the error."""
        caplog.set_level(logging.INFO, "django_idempotency")
        with pytest.raises(ZeroDivisionError):
            run_once(lambda: 1 // 0, scope="s", key="k", operation="o")
        (record,) = caplog.records
        assert record.getMessage().endswith(" of o: released, ZeroDivisionError.")

    def test_a_mismatch_without_http_is_told_too(self, caplog: pytest.LogCaptureFixture) -> None:
        """By name and level."""
        run_once(Order.objects.count, scope="s", key="k", operation="o", payload=1)
        caplog.set_level(logging.INFO, "django_idempotency")
        with pytest.raises(PayloadMismatch):
            run_once(Order.objects.count, scope="s", key="k", operation="o", payload=2)
        (record,) = caplog.records
        assert vars(record)["event"] == "mismatched"
