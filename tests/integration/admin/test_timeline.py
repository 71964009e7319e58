"""All that ever happened under a key, on its page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import override_settings

from django_idempotency.maintenance import Snapshot, close_with, record_outcome, release_for_retry
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import detail, make_key, staff
from tests.at_rest import NEW, OLD
from tests.integration.leased_urls import GATEWAY
from tests.leases import lapse, row

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.admin_urls")]
VIEW, RESOLVE = "view_idempotencykey", "resolve_idempotencykey"


def page_of(key: IdempotencyKey, *permissions: str) -> str:
    return staff(VIEW, *permissions).get(detail(key)).content.decode()


class TestDetail:
    def test_the_timeline_tells_what_happened(self, post: Post, in_doubt: IdempotencyKey) -> None:
        """Steps in their order, the error of the call, and the derived key for the other side's books."""
        page = page_of(in_doubt, "view_response")
        assert "external call, attempt 1" in page
        assert "Broken: it broke, token=****" in page
        derived = GATEWAY.charges[0]
        assert f"<code>{derived}</code>" in page
        assert f'data-copy="{derived}"' in page
        assert post("/pay").status_code == 201
        page = page_of(IdempotencyKey.objects.get(operation="POST pay"), "view_response")
        assert "Completed with status 201" in page
        places = ("Claimed", "<strong>charge", "<strong>order", "<strong>Completed with")
        assert [page.index(place) for place in places] == sorted(page.index(place) for place in places)

    def test_a_result_is_shown_as_it_would_be_pasted(self, post: Post) -> None:
        """Not the envelope in which it is kept; of a row, what names the row."""
        post("/pay")
        page = page_of(row(), "view_response")
        charged = f"{{\n  &quot;charge&quot;: &quot;{GATEWAY.charges[0]}&quot;\n}}</pre>"
        assert charged in page
        assert "&quot;value&quot;" not in page
        assert "&quot;model&quot;: &quot;shopapp.Order&quot;" in page

    def test_results_need_their_permission(self, post: Post) -> None:
        """As response bodies do."""
        post("/pay")
        IdempotencyStep.objects.filter(name="charge").update(result='{"value": "ch_secret"}')
        assert "ch_secret" not in page_of(row())
        assert "ch_secret" in page_of(row(), "view_response")

    def test_a_call_of_a_live_worker_is_running(self, post: Post) -> None:
        """Not in doubt."""
        pages: list[str] = []
        GATEWAY.before = lambda: pages.append(page_of(row(), RESOLVE))
        post("/pay")
        assert "<strong>charge</strong> running" in pages[0]
        assert "Release for retry" not in pages[0]

    def test_a_result_that_could_not_be_kept_is_told(self, post: Post) -> None:
        """The call is done."""
        post("/pay")
        IdempotencyStep.objects.update(result=None)
        assert "Done, but the result could not be stored." in page_of(row(), "view_response")

    def test_a_call_without_result_under_a_completed_key_is_not_in_doubt(self, post: Post) -> None:
        """The view has dealt with it."""
        post("/pay")
        IdempotencyStep.objects.filter(name="charge").update(finished_at=None, result=None)
        assert "<strong>charge</strong> no result" in page_of(row())

    def test_times_have_seconds_and_the_zone(self) -> None:
        """The other side's books have another."""
        with override_settings(TIME_ZONE="Europe/Berlin"):
            page = page_of(make_key(created_at=datetime(2026, 7, 1, 1, 2, 3, tzinfo=UTC)))
        assert "2026-07-01 03:02:03 CEST" in page

    def test_lapse_is_by_the_databases_clock(self, post: Post) -> None:
        """A lease that has just ended is over."""
        seen: list[str] = []
        GATEWAY.before = lambda: (lapse(), seen.append(page_of(row())))
        post("/pay")
        assert "idempotency-in_doubt" in seen[0]


class TestTrail:
    def test_nothing_that_was_in_doubt_disappears(self, post: Post, in_doubt: IdempotencyKey) -> None:
        """A release deletes the step, and the timeline keeps what it was, who released it, when and why."""
        release_for_retry(in_doubt.pk, attempt=1, by="ada", reason="T-7 <b>")
        assert post("/pay/hold").status_code == 201
        page = page_of(row())
        assert "ada released the key for a retry" in page
        assert "T-7 &lt;b&gt;" in page
        assert "charge (external call, attempt 1), started 2" in page
        assert page.count("Broken: it broke, token=****") == 1
        assert page.index("ada released") < page.index("<strong>charge</strong>")
        assert "ada released the key for a retry, 2" in page  # the last decision, above the timeline

    def test_a_corrected_result_is_shown_to_those_who_may(self, in_doubt: IdempotencyKey) -> None:
        """The old one, too."""
        for charge in ("ch_old", "ch_new"):
            record_outcome(in_doubt.pk, "charge", {"charge": charge}, attempt=1, by="ada", reason="T-7")
        for permissions, shown in (((), False), (("view_response",), True)):
            page = page_of(row(), *permissions)
            assert "ada recorded the result of “charge”" in page
            assert "ada corrected the result of “charge”" in page
            assert ("ch_old" in page, "ch_new" in page) == (shown, shown)

    def test_a_decision_of_a_script_names_no_person(self, in_doubt: IdempotencyKey) -> None:
        """As the functions are called without `by`."""
        close_with(in_doubt.pk, Snapshot(status_code=410, headers=(), body=b""), attempt=1)
        assert "a script answered by hand with status 410" in page_of(row())

    def test_an_action_of_another_release_is_shown_by_its_name(self) -> None:
        """In a rolling deployment, newer processes may write it."""
        trail = '[{"action": "transfer 5%", "at": "2026-07-01T01:02:03+00:00", "by": "ada", "detail": "charge"}]'
        assert "ada: transfer 5% charge" in page_of(make_key(decisions=trail))

    def test_a_write_in_doubt_has_no_derived_key(self, in_doubt: IdempotencyKey) -> None:
        """Nothing was sent outside, now and in the trail."""
        IdempotencyStep.objects.update(kind="write")
        release_for_retry(in_doubt.pk, attempt=1)
        assert "charge (local write, attempt 1)" in page_of(row())
        assert "data-copy" not in page_of(row())

    def test_what_is_encrypted_needs_its_permission(self, in_doubt: IdempotencyKey, settings: Any) -> None:
        """Errors and reasons may quote a request."""
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
        release_for_retry(in_doubt.pk, attempt=1, by="ada", reason="T-7")
        assert "T-7" not in page_of(row())
        assert "Encrypted. You need the permission" in page_of(row())
        assert "T-7" in page_of(row(), "view_response")
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
        page = page_of(row(), "view_response", RESOLVE)
        assert "cannot be decrypted by any key" in page
        assert "Release for retry" in page
