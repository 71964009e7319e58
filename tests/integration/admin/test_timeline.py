"""What a key waits for, in words, and its steps as a timeline."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import detail, make_key, staff
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, breaks, lapse, row

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.admin_urls")]
VIEW, RESOLVE = "view_idempotencykey", "resolve_idempotencykey"


@pytest.fixture(autouse=True)
def _clean() -> None:
    GATEWAY.reset()
    HOOKS.clear()


@pytest.fixture
def in_doubt(post: Post) -> IdempotencyKey:
    GATEWAY.after = breaks
    with pytest.raises(Broken):
        post("/pay/hold")
    GATEWAY.after = lambda: None
    return row()


class TestDetail:
    def test_the_timeline_tells_what_happened(self, post: Post, in_doubt: IdempotencyKey) -> None:
        """Steps in their order, the error of the call, and what the key waits for."""
        page = staff(VIEW, "view_response").get(detail(in_doubt)).content.decode()
        assert "In doubt: these steps were started and have no result: charge. Check whether" in page
        assert "external call" in page
        assert "Broken: it broke, token=****" in page
        assert post("/pay").status_code == 201
        page = staff(VIEW, "view_response").get(detail(IdempotencyKey.objects.get(operation="POST pay")))
        assert "None: the key is completed." in page.content.decode()
        assert "&quot;charge&quot;: &quot;" in page.content.decode()

    def test_results_need_their_permission(self, post: Post) -> None:
        """As response bodies do."""
        post("/pay")
        assert GATEWAY.charges[0] not in staff(VIEW).get(detail(row())).content.decode()
        assert GATEWAY.charges[0] in staff(VIEW, "view_response").get(detail(row())).content.decode()

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (
                {"status": "in_progress", "locked_until": timezone.now() + timedelta(days=999)},
                "None: a worker holds the lease until",
            ),
            ({"status": "in_progress", "locked_until": timezone.now() - timedelta(1)}, "Stuck: the worker died"),
            ({"status": "failed"}, "None: the next retry runs the operation again."),
        ],
    )
    def test_it_says_what_the_key_waits_for(self, change: dict[str, Any], text: str) -> None:
        """In words; a key without steps says so."""
        page = staff(VIEW).get(detail(make_key(**change))).content.decode()
        assert text in page
        assert "The key has no steps." in page

    def test_a_call_of_a_live_worker_is_running(self, post: Post) -> None:
        """Not in doubt."""
        pages: list[str] = []
        GATEWAY.before = lambda: pages.append(staff(VIEW, RESOLVE).get(detail(row())).content.decode())
        post("/pay")
        assert "<td>running</td>" in pages[0]
        assert "Release for retry" not in pages[0]

    def test_a_result_that_could_not_be_kept_is_told(self, post: Post) -> None:
        """The call is done."""
        post("/pay")
        IdempotencyStep.objects.update(result=None)
        page = staff(VIEW, "view_response").get(detail(row())).content.decode()
        assert "Done, but the result could not be stored." in page


def test_lapse_is_by_the_databases_clock(post: Post) -> None:
    """Used above."""
    seen: list[str] = []
    GATEWAY.before = lambda: (lapse(), seen.append(staff(VIEW).get(detail(row())).content.decode()))
    post("/pay")
    assert "In doubt" in seen[0]
