"""What a person may decide about a key that is stuck or in doubt."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_idempotency import NotResolvable
from django_idempotency.engine.protocol.outcomes import Snapshot
from django_idempotency.maintenance import (
    close_with,
    record_outcome,
    release_for_retry,
)
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.at_rest import OLD
from tests.integration.leased_urls import GATEWAY
from tests.leases import Broken, as_if_killed, breaks, row
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.leased_urls")]
CLOSED = Snapshot(status_code=200, headers=(("Content-Type", "text/plain"),), body=b"refunded by hand")


@pytest.fixture(params=["failed", "abandoned"])
def in_doubt(request: pytest.FixtureRequest, post: Post) -> IdempotencyKey:
    """A held key whose charge may or may not have happened, because the call raised or its worker died."""
    GATEWAY.after = breaks
    with pytest.raises(Broken):
        post("/pay/hold")
    if request.param == "abandoned":
        as_if_killed()
    GATEWAY.after = lambda: None
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
    assert row().last_error  # the partial index of failed keys has no other condition
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
    """Its view keeps it for a month, the project for a day: a retry in the second week must not charge again."""
    month = timezone.now() + timedelta(days=30)
    IdempotencyKey.objects.update(expires_at=month)
    decisions(in_doubt)[decision]()
    assert row().expires_at == month


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


def test_a_recorded_result_can_be_corrected_until_the_key_is_completed(post: Post, in_doubt: IdempotencyKey) -> None:
    """The trail keeps the result that was replaced."""
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


def test_a_correction_changes_no_other_result(in_doubt: IdempotencyKey) -> None:
    """Neither of another step, nor of a step with this name of another key."""
    now = timezone.now()
    other = create_key("other", steps={"charge": "ch_9"})
    mail: dict[str, Any] = {"name": "mail", "kind": "call", "attempt": 1, "result": "7"}
    IdempotencyStep.objects.create(key=in_doubt, started_at=now, finished_at=now, **mail)
    for result in ("ch_1", "ch_2"):
        record_outcome(IdempotencyKey.objects.get(pk=in_doubt.pk), "charge", result)
    results = dict(IdempotencyStep.objects.values_list("key_id", "result").filter(name="charge"))
    assert results == {in_doubt.pk: '{"value": "ch_2"}', other.pk: '{"value": "ch_9"}'}
    assert IdempotencyStep.objects.get(name="mail").result == "7"
    in_doubt.refresh_from_db()
    assert [made.attempt for made in decisions_of(in_doubt)] == [1, 1]


"""No dict, or without what each decision and each step in doubt has."""
