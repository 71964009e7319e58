"""What a person may decide about a key that is stuck or in doubt."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from django_idempotency import NotResolvable
from django_idempotency.engine.protocol.outcomes import Snapshot
from django_idempotency.maintenance import (
    Resolved,
    close_with,
    record_outcome,
    release_for_retry,
    resolve_all,
    stuck,
)
from django_idempotency.maintenance import in_doubt as keys_in_doubt
from django_idempotency.maintenance.decisions import Decision, decisions_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.admin_pages import make_key
from tests.at_rest import NEW, OLD
from tests.expired import make_leased
from tests.leased_urls import GATEWAY, leave_in_doubt
from tests.leases import as_if_killed, row
from tests.shopapp.models import Order
from tests.step_rows import add_step

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]
OTHER = "T3RoZXItb3RoZXItb3RoZXItb3RoZXItb3RoZXItb3Q="
CLOSED = Snapshot(status_code=200, headers=(("Content-Type", "text/plain"),), body=b"refunded by hand")


@pytest.fixture(params=["failed", "abandoned"])
def in_doubt(request: pytest.FixtureRequest, post: Post) -> IdempotencyKey:
    """A held key whose charge may or may not have happened, because the call raised or its worker died."""
    leave_in_doubt(post)
    if request.param == "abandoned":
        as_if_killed()
    assert post("/pay/hold").status_code == 409
    IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
    return row()


def decisions(key: IdempotencyKey, attempt: int | None = None) -> list[Callable[[], None]]:
    key.attempt = attempt or key.attempt
    return [
        lambda: release_for_retry(key),
        lambda: record_outcome(key, "charge", {"charge": "ch_1"}),
        lambda: close_with(key, CLOSED),
    ]


def test_released_the_call_is_made_again(post: Post, in_doubt: IdempotencyKey) -> None:
    """With the same derived key; the key is kept long enough for the retry."""
    release_for_retry(row())
    assert (row().status, row().locked_until) == ("failed", None)
    # The partial index of failed keys has no other condition than that there is an error.
    assert row().last_error == (in_doubt.last_error or "A decision ended this attempt.")
    assert row().expires_at > timezone.now() + timedelta(hours=23)
    answer = post("/pay/hold")
    assert (answer.status_code, answer.json()["attempt"]) == (201, 2)
    assert (GATEWAY.calls, len(GATEWAY.charges)) == (2, 1)


def test_closed_it_is_replayed(post: Post, in_doubt: IdempotencyKey) -> None:
    """The view does not run."""
    close_with(row(), CLOSED)
    answer = post("/pay/hold")
    assert (answer.status_code, answer.content, answer.headers["Content-Type"]) == (200, CLOSED.body, "text/plain")
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert (GATEWAY.calls, Order.objects.count()) == (1, 0)
    assert row().completed_at is not None


@pytest.mark.parametrize("decision", range(3))
def test_a_decision_does_not_shorten_the_life_of_a_key(post: Post, in_doubt: IdempotencyKey, decision: int) -> None:
    """Its view keeps it for a year, the project for a month: a retry in the second month must not charge again."""
    year = timezone.now() + timedelta(days=365)
    IdempotencyKey.objects.update(expires_at=year)
    decisions(in_doubt)[decision]()
    assert row().expires_at == year


@pytest.mark.parametrize("decision", range(3))
def test_a_decision_keeps_the_key_as_long_as_leased_keys_are_kept(in_doubt: IdempotencyKey, decision: int) -> None:
    """Counted from the decision: for 35 days, or for the `ttl` of the project."""
    IdempotencyKey.objects.update(expires_at=timezone.now())
    decisions(in_doubt)[decision]()
    assert abs(row().expires_at - row().updated_at - timedelta(days=35)) < timedelta(minutes=1)
    assert [(made.by, made.reason, made.attempt) for made in decisions_of(row())] == [("", "", 1)]


@pytest.mark.parametrize("name", ["CHARGE", "chargé", "charge "])
def test_a_step_has_exactly_its_name(post: Post, in_doubt: IdempotencyKey, settings: Any, name: str) -> None:
    """A collation finds it by others, too. What is encrypted for another name could never be read."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}

    def refused() -> None:
        before = list(IdempotencyKey.objects.values()), list(IdempotencyStep.objects.values())
        with pytest.raises(NotResolvable, match=f"The call '{name}' is not in doubt"):
            record_outcome(row(), name, {"charge": "ch_2"})
        assert (list(IdempotencyKey.objects.values()), list(IdempotencyStep.objects.values())) == before

    refused()
    record_outcome(row(), "charge", {"charge": "ch_1"})
    refused()
    assert post("/pay/hold").json()["charge"] == "ch_1"


@pytest.mark.parametrize("encryption", [{}, {"ENCRYPTION_KEYS": [OLD]}])
def test_a_recorded_result_can_be_corrected_until_the_key_is_completed(
    post: Post, in_doubt: IdempotencyKey, settings: Any, encryption: dict[str, Any]
) -> None:
    """The trail keeps the result that was replaced, readable also if results are encrypted."""
    settings.IDEMPOTENCY = encryption
    record_outcome(row(), "charge", {"value": {"charge": "ch_1"}}, by="ada")
    with pytest.raises(KeyError):
        post("/pay/hold")
    record_outcome(row(), "charge", {"charge": "ch_1"}, by="bob", reason="T-7")
    trail = decisions_of(row())
    assert [(made.action, made.by, made.detail) for made in trail] == [
        ("record", "ada", "charge"),
        ("correct", "bob", "charge"),
    ]
    assert [made.replaced for made in trail] == [None, '{"value": {"value": {"charge": "ch_1"}}}']
    assert post("/pay/hold").json()["charge"] == "ch_1"
    with pytest.raises(NotResolvable, match="the key is completed"):
        record_outcome(row(), "charge", {"charge": "ch_2"})
    assert GATEWAY.calls == 1


@pytest.mark.parametrize("decision", range(3))
def test_a_decision_needs_no_lost_encryption_key(post: Post, settings: Any, decision: int) -> None:
    """The error of the call and the trail stay as they are, and are readable when it is found."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    leave_in_doubt(post)
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
    decisions(row())[decision]()
    actions = ["release", "record", "answer"][decision : decision + 1]
    assert [(made.action, made.steps[0]["error"][:5]) for made in decisions_of(row())] == [(*actions, "enc1:")]
    if decision == 1:
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OTHER]}
        close_with(row(), CLOSED)
        assert [made.action for made in decisions_of(row())] == ["unreadable", "answer"]
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OTHER, NEW]}
        assert [made.action for made in decisions_of(row())] == ["record", "answer"]


def test_a_correction_changes_no_other_result(in_doubt: IdempotencyKey) -> None:
    """Neither of another step, nor of a step with this name of another key."""
    other = create_key("other", steps={"charge": "ch_9"})
    add_step(in_doubt, "mail", finished_at=timezone.now(), result="7")
    for result in ("ch_1", "ch_2"):
        record_outcome(IdempotencyKey.objects.get(pk=in_doubt.pk), "charge", result)
    results = dict(IdempotencyStep.objects.values_list("key_id", "result").filter(name="charge"))
    assert results == {in_doubt.pk: '{"value": "ch_2"}', other.pk: '{"value": "ch_9"}'}
    assert IdempotencyStep.objects.get(name="mail").result == "7"
    in_doubt.refresh_from_db()
    assert [made.attempt for made in decisions_of(in_doubt)] == [1, 1]


class TestSeen:
    """A decision carries what it saw, and is refused when another one came first."""

    @pytest.mark.uncounted
    def test_a_word_is_asked_for_under_the_lock(self, in_doubt: IdempotencyKey) -> None:
        """A late worker may have finished its call since the key was shown: then an answer needs a word."""
        with pytest.raises(NotResolvable, match="ask the called service"):
            release_for_retry(row(), confirmed=False)
        IdempotencyStep.objects.update(finished_at=timezone.now())
        with pytest.raises(NotResolvable, match="ask the called service"):
            close_with(row(), CLOSED, confirmed=False)
        assert row().decisions is None
        close_with(row(), CLOSED)
        assert row().status == "completed"


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.parametrize("kinds", [(0, 1), (0, 2), (1, 1), (1, 2), (2, 2)])
def test_of_two_decisions_at_once_one_wins(kinds: tuple[int, int], in_threads: Callable[..., list[Any]]) -> None:
    """Both people have seen the same key. The other one is told."""
    for number in range(4):
        key = create_key(f"race {number}", in_doubt=["charge"])
        key = IdempotencyKey.objects.get(pk=key.pk)
        made: list[Callable[[], None]] = [
            lambda key=key: release_for_retry(key),
            lambda key=key: record_outcome(key, "charge", "ch_1"),
            lambda key=key: close_with(key, CLOSED),
        ]

        together = Barrier(2)

        def decide(number: int, made: Any = made, together: Barrier = together) -> bool:
            together.wait(timeout=30)
            try:
                made[kinds[number]]()
            except NotResolvable:
                return False
            return True

        assert sorted(in_threads(2, decide)) == [False, True]
        key.refresh_from_db()
        assert len(decisions_of(key)) == 1


@pytest.mark.parametrize("status", [100, 500, 599])
def test_a_closing_answer_is_final(in_doubt: IdempotencyKey, status: int) -> None:
    """200 to 499."""
    with pytest.raises(ValueError, match=f"status {status} is not a final answer"):
        close_with(row(), Snapshot(status_code=status, headers=(), body=b""))


class TestMany:
    """One decision about many keys."""

    @pytest.fixture(autouse=True)
    def _keys(self) -> None:
        make_leased("doubt 1", "failed", doubt=True)
        make_leased("doubt 2", "failed", doubt=True)
        make_leased("stuck", "in_progress", lapsed=True, call=False)
        make_leased("running", "in_progress", lapsed=False, doubt=True)

    def statuses(self) -> dict[str, str]:
        return dict(IdempotencyKey.objects.order_by("pk").values_list("key", "status"))

    def test_each_listed_key_is_resolved(self) -> None:
        """And no other one. Each says who decided and why."""
        assert resolve_all(keys_in_doubt(), close_with, CLOSED, by="ada", reason="down") == Resolved(
            resolved=2, refused=0
        )
        assert resolve_all(stuck(), release_for_retry) == Resolved(resolved=1, refused=0)
        assert list(self.statuses().values()) == ["completed", "completed", "failed", "in_progress"]
        for key in IdempotencyKey.objects.filter(key__startswith="doubt"):
            assert [(made.by, made.reason) for made in decisions_of(key)] == [("ada", "down")]

    def test_those_that_cannot_be_resolved_now_are_counted(self) -> None:
        """A completed key, one with a live lease, one that needs a word. The other one is resolved all the same."""
        IdempotencyKey.objects.filter(key="doubt 1").update(status="completed", attention_at=None)
        every = IdempotencyKey.objects.all()
        assert resolve_all(every, close_with, CLOSED, confirmed=False) == Resolved(resolved=1, refused=3)
        assert list(self.statuses().values()) == ["completed", "failed", "completed", "in_progress"]

    @pytest.mark.django_db(databases=["default", "other"])
    def test_each_is_decided_about_in_its_own_database(self) -> None:
        """The one that it was read from. Rows of another database may have the same numbers."""
        create_key("other", status="abandoned", using="other")
        rows = [*stuck(), *stuck(using="other")]
        assert resolve_all(rows, release_for_retry) == Resolved(resolved=2, refused=0)
        assert (self.statuses()["stuck"], IdempotencyKey.objects.using("other").get().status) == ("failed", "failed")


KNOWN: dict[str, Any] = {"action": "release", "at": "2026-01-02T03:04:05+00:00", "by": "ann", "reason": "T-1"}
LATER = {**KNOWN, "ticket": "T-9"}
UNREADABLE = ["a text", 7, None, {}, {"by": "ann"}, {**KNOWN, "at": "x"}, {**KNOWN, "steps": 7}, {**KNOWN, "action": 7}]
UNREADABLE += [{**KNOWN, "steps": [{"name": "charge"}]}, {**KNOWN, "reason": None}, {**KNOWN, "at": "0001-01-01"}]


class TestTrail:
    """A trail that another version of this package has written, before it was rolled back."""

    def trail(self) -> Any:
        return json.loads(IdempotencyKey.objects.get(key="key").decisions or "null")

    def test_unknown_names_are_left_out(self) -> None:
        """What is known is shown, and that there is more."""
        key = make_key(decisions=json.dumps([LATER, *UNREADABLE]))
        known, *others = decisions_of(key)
        assert known == Decision(**KNOWN)
        assert others == [Decision(action="unreadable", at=key.updated_at.isoformat(), by="?")] * len(UNREADABLE)

    def test_decisions_go_on(self) -> None:
        make_leased("key", "failed", doubt=True)
        earlier = [LATER, *UNREADABLE]
        IdempotencyKey.objects.update(decisions=json.dumps(earlier))
        record_outcome(row(), "call", 1)
        close_with(row(), CLOSED)
        assert self.trail()[: len(earlier)] == earlier
        assert [made["action"] for made in self.trail()[len(earlier) :]] == ["record", "answer"]

    @pytest.mark.parametrize(
        ("use_tz", "moment"),
        [(True, datetime(2026, 7, 2, 10, tzinfo=UTC)), (False, datetime(2026, 7, 2, 12))],
    )
    def test_times_are_told_as_django_tells_all_times(self, use_tz: bool, moment: datetime) -> None:
        """The trail keeps them with their zone."""
        with override_settings(TIME_ZONE="Europe/Berlin", USE_TZ=use_tz):
            assert Decision(action="release", at="2026-07-02T10:00:00+00:00").moment == moment
