"""Rows made by `create_key`, and the real requests that meet them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import JsonResponse
from django.test import override_settings

from django_idempotency.maintenance import half_done, in_doubt
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.at_rest import NEW
from tests.shopapp.models import Order
from tests.testing import leased_urls

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.endpoint_urls")]
leased = pytest.mark.urls("tests.testing.leased_urls")


def test_an_anonymous_caller_meets_the_row(post: Post) -> None:
    """And gets its response, byte for byte; the view does not run."""
    create_key("k1", operation="POST good", response=JsonResponse({"id": 7}, status=202, headers={"X-Mark": "x"}))
    answer = post("/good", key="k1")
    assert (answer.status_code, answer.content, answer.headers["X-Mark"]) == (202, b'{"id": 7}', "x")
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert not Order.objects.exists()


@pytest.mark.parametrize(
    ("status", "answered", "replayed"),
    [("completed", 201, "true"), ("in_progress", 409, "false"), ("abandoned", 201, "false"), ("failed", 201, "false")],
)
def test_each_status_is_met_as_it_says(post: Post, status: Any, answered: int, replayed: str) -> None:
    """A replay, a conflict, and two that run again."""
    row = create_key("k1", operation="POST leased", status=status)
    assert row.status == {"abandoned": "in_progress"}.get(status, status)
    answer = post("/leased", key="k1")
    assert (answer.status_code, answer.headers["Idempotency-Replayed"]) == (answered, replayed)
    assert Order.objects.count() == (1 if (answered, replayed) == (201, "false") else 0)
    row.refresh_from_db()
    assert row.attempt == (2 if Order.objects.exists() else 1)


@pytest.mark.django_db(databases=["default", "other"])
def test_without_arguments_it_makes_a_new_key_each_time() -> None:
    """Living for as long as the project says; using= says on which database."""
    with override_settings(IDEMPOTENCY={"TTL": 60}):
        rows = [create_key(using="other"), create_key(using="other")]
    assert (IdempotencyKey.objects.count(), IdempotencyKey.objects.using("other").count()) == (0, 2)
    assert len({row.key for row in rows}) == 2
    assert {(row.scope, row.operation, row.status, row.attempt, row.policy) for row in rows} == {
        ("anonymous", "POST orders/", "completed", 1, None)
    }
    with pytest.raises(ValueError, match=f"A row with the key '{rows[0].key}' exists: a request with it gets Complete"):
        create_key(rows[0].key, using="other")
    assert abs((rows[0].expires_at - rows[0].created_at).total_seconds() - 60) < 0.1


class TestSteps:
    """Keys of leased views, as attempts leave them that did not come to their end."""

    @leased
    def test_the_next_attempt_goes_on_behind_the_finished_step(self, post: Post) -> None:
        """The call is not made; the view gets its result. A failed key is half done."""
        row = create_key("k1", operation="POST leased", steps={"charge": {"id": "ch_1"}})
        assert (row.status, row.policy, list(half_done())) == ("failed", "retry-keyed", [row])
        answer = post("/leased", key="k1")
        assert (answer.status_code, answer.json()["charge"]) == (201, "ch_1")
        assert leased_urls.MADE == []

    @leased
    @pytest.mark.parametrize(
        ("path", "policy", "answered"), [("/held", "hold", 409), ("/no_derived_key", "retry", 201)]
    )
    def test_a_call_in_doubt(self, post: Post, path: str, policy: Any, answered: int) -> None:
        """On hold a person is asked; else the call is made again."""
        row = create_key("k1", operation=f"POST {path[1:]}", in_doubt=["charge"], on_abandoned=policy)
        assert (row.status, row.policy, list(in_doubt())) == ("failed", policy, [row])
        assert post(path, key="k1").status_code == answered

    def test_a_completed_key_keeps_its_steps(self) -> None:
        """Its lease is over, and its results are encrypted as those of real steps."""
        pytest.importorskip("cryptography")
        with override_settings(IDEMPOTENCY={"ENCRYPTION_KEYS": [NEW]}):
            row = create_key("k1", status="completed", steps={"charge": "ch_1"})
        assert (row.status, row.policy, row.locked_until) == ("completed", "retry-keyed", None)
        assert "ch_1" not in row.steps.get().result
