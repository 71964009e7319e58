"""A key in words: what happened, what is certain, what is not, and what comes next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_idempotency.admin.facts import facts_of
from django_idempotency.admin.story import story_of
from django_idempotency.admin.timeline import timeline
from django_idempotency.models import IdempotencyStep
from tests.admin_pages import HOUR, detail, make_key, staff, step

pytestmark = pytest.mark.django_db
NEVER = "never, while it needs attention"
STUCK: dict[str, Any] = {"status": "in_progress", "locked_until": datetime(2026, 7, 1, 1, 2, 3, tzinfo=UTC)}


def told(doubt: bool = False, call: bool = False, **fields: Any) -> Any:
    key = make_key(**fields)
    if doubt:
        step(key)
    if call:
        step(key, finished=True)
    return story_of(facts_of(key))


def test_in_doubt_under_hold() -> None:
    """The call may have taken effect, and no retry makes it again."""
    story = told(doubt=True, status="failed", policy="hold")
    assert story.happened == "Attempt 1 ended without a final response."
    assert story.certain == "No step has a result."
    assert story.uncertain == "Whether these calls took effect: charge. They were started and have no result."
    assert story.without_decision.endswith(f"an order without a charge. Expires: {NEVER}.")
    assert story.next_retry.startswith("It is refused with 409, and no call is made again.")
    assert story.to_do.startswith("Look the call up in the other side's books by its derived key.")


def test_in_doubt_under_retry() -> None:
    """The next retry makes the call again."""
    story = told(doubt=True, **STUCK, policy="retry")
    assert "has died or is too slow: its lease was over at 2026-06-30 20:02:03 CDT." in story.happened
    assert story.next_retry.startswith("The view runs again, and makes the calls in doubt again with the same derived")


def test_in_doubt_of_an_older_version() -> None:
    """Rows of 0.1 do not know their policy."""
    assert told(doubt=True, status="failed").next_retry.startswith("The view's policy decides.")


def test_a_write_in_doubt() -> None:
    """It is never repeated, under no policy."""
    key = make_key(status="failed", policy="retry")
    step(key)
    IdempotencyStep.objects.update(kind="write")
    story = story_of(facts_of(key))
    assert "A write ended its own transaction in the middle." in story.uncertain
    assert story.next_retry == "It is refused with 409. A person has to decide."


def test_half_done() -> None:
    """What is missing is the rest."""
    story = told(call=True, status="failed", policy="hold")
    assert story.certain == "These steps have ended: charge."
    assert story.uncertain.startswith("Nothing. But the rest of the work is missing")
    assert NEVER in story.without_decision
    assert story.next_retry.startswith("The view runs again. Steps that have ended are not repeated")
    assert story.to_do.startswith("Ask the client to retry.")


def test_stuck_without_a_call() -> None:
    """Harmless."""
    story = told(**STUCK)
    assert story.certain == "No step was started: nothing has happened outside."
    assert (story.uncertain, story.next_retry) == ("", "The view runs again.")
    assert story.without_decision.startswith("No harm is done")
    assert story.to_do == "Ask the client to retry. Nothing has happened outside."


def test_a_view_that_ended_its_own_transaction() -> None:
    """What it wrote is kept, and retries are refused."""
    story = told(status="in_progress")
    assert story.happened == "The view ended its own transaction and did not come to its end."
    assert story.certain == "What the view wrote before the end of its transaction is kept."
    assert story.uncertain == "Which part of its work the view has done."
    assert story.without_decision == f"The key stays as it is, and retries are refused. Expires: {NEVER}."
    assert story.next_retry == "It is refused with 409. A person has to decide."
    assert story.to_do.startswith("Check what the view has written.")


def test_in_flight() -> None:
    """Nothing to do."""
    story = told(doubt=True, status="in_progress", locked_until=timezone.now() + HOUR)
    assert story.happened.startswith("A worker is at work on attempt 1. It holds the lease until ")
    assert story.without_decision == "The worker ends, or a retry takes the key over after the lease."
    assert story.next_retry == "A retry is told that the request is still being processed."
    assert (story.uncertain, story.to_do) == ("", "")


def test_failed() -> None:
    """Nothing has happened outside."""
    story = told(status="failed", expires_at=datetime(2026, 7, 1, tzinfo=UTC))
    assert story.without_decision.startswith("The key expires at 2026-06-30 19:00:00 CDT.")
    assert story.next_retry == "The view runs again."


@pytest.mark.parametrize(
    ("body", "retry"),
    [
        (b"{}", "It gets the kept response. Nothing runs again."),
        (None, "It is told that the operation has ended, and that the response was not stored. Nothing runs again."),
    ],
)
def test_completed(body: bytes | None, retry: str) -> None:
    """With its response, or without."""
    story = told(body=body)
    assert story.happened == "The operation has ended with status 201."
    assert (story.certain, story.next_retry) == ("The response is kept.", retry)


class TestExpiry:
    def test_a_key_that_needs_attention_does_not_expire(self) -> None:
        """The time in its column does not count."""
        page = staff("view_idempotencykey").get(detail(make_key(**STUCK))).content.decode()
        assert f'<div class="readonly">{NEVER}</div>' in page

    def test_unless_the_project_says_so(self, settings: Any) -> None:
        """Then the page says when, and what cleanup does."""
        settings.IDEMPOTENCY = {"UNSETTLED_TTL": timedelta(days=30)}
        key = make_key(**STUCK, expires_at=datetime(2026, 7, 1, tzinfo=UTC))
        page = staff("view_idempotencykey").get(detail(key)).content.decode()
        assert "2026-07-30 19:00:00 CDT (UNSETTLED_TTL): cleanup then deletes the key and logs an error" in page

    def test_nor_one_at_work(self) -> None:
        """Its worker ends first."""
        key = make_key(status="in_progress", locked_until=timezone.now() + HOUR)
        page = staff("view_idempotencykey").get(detail(key)).content.decode()
        assert "never, while it is in progress" in page


def test_the_policy_is_shown() -> None:
    """As the view has declared it."""
    page = staff("view_idempotencykey").get(detail(make_key(policy="hold"))).content.decode()
    assert "hold: wait for a decision" in page


class Counted(list[IdempotencyStep]):
    """It counts how often it is read."""

    times = 0

    def __iter__(self) -> Iterator[IdempotencyStep]:
        self.times += 1
        return super().__iter__()


@pytest.mark.parametrize("finished", [None, timezone.now()], ids=["in doubt", "finished"])
def test_each_step_more_costs_the_same(finished: datetime | None) -> None:
    """The page of a key with 10,000 steps took half a minute: for each step, it read all."""
    key, now = make_key(status="failed", policy="hold"), timezone.now()
    steps = [
        IdempotencyStep(key=key, name=f"s{number}", kind="call", attempt=1, started_at=now, finished_at=finished)
        for number in range(100)
    ]
    IdempotencyStep.objects.bulk_create(steps)
    counted = Counted(facts_of(key).steps)
    key.__dict__["_facts"] = replace(facts_of(key), steps=counted)
    story_of(facts_of(key))
    timeline(key, results=True)
    assert counted.times < 40
