"""The page of a key: what it shows to whom, the story, the timeline, the response, and links."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import reverse

from django_idempotency import ResultNotStorable
from django_idempotency.admin.texts import moment
from django_idempotency.maintenance import record_outcome, release_for_retry
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import LIST, address, detail, make_key, staff, step
from tests.at_rest import NEW, OLD
from tests.factories import UserFactory
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, breaks, lapse, row
from tests.step_rows import add_step

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin_urls")]
MADE = {"action": "release", "at": "2026-01-02T03:04:05+00:00", "by": "ann", "reason": "T-1"}
VIEW, RESOLVE, SECRETS = "view_idempotencykey", "resolve_idempotencykey", "view_response"


def page_of(key: IdempotencyKey, *permissions: str) -> str:
    return staff(VIEW, *permissions).get(detail(key)).content.decode()


class TestTimeline:
    def test_it_tells_what_happened(self, post: Post, in_doubt: IdempotencyKey) -> None:
        """Steps in their order, the error of the call, and the derived key for the called service's books."""
        page = page_of(in_doubt, SECRETS)
        assert "external call, attempt 1" in page
        assert "Broken: line 19 of tests.leases.breaks" in page
        derived = GATEWAY.charges[0]
        assert f"<code>{derived}</code>" in page
        assert f'data-copy="{derived}"' in page
        with override_settings(IDEMPOTENCY={"NAMESPACE": "shop a"}):
            assert derived not in page_of(in_doubt, SECRETS)
        assert post("/pay").status_code == 201
        page = page_of(IdempotencyKey.objects.get(operation="POST pay"), SECRETS)
        places = ("Claimed", "<strong>charge", "<strong>order", "<strong>Completed with status 201")
        assert [page.index(place) for place in places] == sorted(page.index(place) for place in places)

    def test_a_call_without_a_derived_key_says_so(self, post: Post) -> None:
        """The called service cannot look the call up by such a key. The page of a decision says so, too."""
        HOOKS["between"] = lambda operation: operation.call("mail", breaks)
        with pytest.raises(Broken):
            post("/pay")
        none = "none: the view did not ask for one before this call"
        assert none in page_of(row())
        decision = staff(VIEW, "resolve_idempotencykey").get(address(row(), "record")).content.decode()
        assert f"In doubt: mail (derived key: {none})" in decision

    def test_results_are_shown_as_they_would_be_pasted(self, post: Post) -> None:
        """Not the envelope in which they are kept; of a row, what names the row. They need their permission."""
        post("/pay")
        page = page_of(row(), SECRETS)
        assert f"{{&quot;charge&quot;: &quot;{GATEWAY.charges[0]}&quot;}}</pre>" in page
        assert "&quot;value&quot;" not in page
        assert "&quot;model&quot;: &quot;shopapp.Order&quot;" in page
        assert "&quot;shopapp.Order&quot;" not in page_of(row())

    @pytest.mark.parametrize("lapsed", [False, True])
    def test_a_call_of_a_live_worker_is_running(self, post: Post, lapsed: bool) -> None:
        """Not in doubt, until its lease is over by the database's clock."""
        pages: list[str] = []

        def look() -> None:
            if lapsed:
                lapse()
            pages.append(page_of(row(), RESOLVE))

        GATEWAY.before = look
        post("/pay")
        assert ("<strong>charge</strong> running" in pages[0]) is not lapsed
        assert ("idempotency-in_doubt" in pages[0], "Release for retry" in pages[0]) == (lapsed, lapsed)

    def test_nothing_that_was_in_doubt_disappears(self, post: Post, in_doubt: IdempotencyKey) -> None:
        """A release deletes the step, and the timeline keeps what it was, who released it, when and why."""
        release_for_retry(IdempotencyKey.objects.get(), by="ada", reason="T-7 <b>")
        assert post("/pay/hold").status_code == 201
        page = page_of(row())
        assert "T-7 &lt;b&gt;" in page
        assert "charge (external call, attempt 1), started 2" in page
        assert page.count("Broken: line 19 of tests.leases.breaks") == 1
        assert page.index("ada released the key for a retry") < page.index("<strong>charge</strong>")
        assert "ada released the key for a retry, 2" in page  # the last decision, above the timeline

    def test_a_corrected_result_is_shown_to_those_who_may(self, in_doubt: IdempotencyKey) -> None:
        """The old one, too. What a person entered was no call, so it has no duration."""
        for charge in ("ch_old", "ch_new"):
            record_outcome(IdempotencyKey.objects.get(), "charge", {"charge": charge}, by="ada", reason="T-7")
        for permissions, shown in (((), False), ((SECRETS,), True)):
            page = page_of(row(), *permissions)
            assert "ada recorded the result of “charge”" in page
            assert "ada corrected the result of “charge”" in page
            assert ("ch_old" in page, "ch_new" in page) == (shown, shown)
            assert ("recorded by a person" in page, "finished after" in page) == (True, False)

    def test_a_lost_value_was_recorded_by_nobody(self, post: Post) -> None:
        """Its call has ended by itself."""
        GATEWAY.result = lambda key: object()
        with pytest.raises(ResultNotStorable):
            post("/pay")
        page = page_of(row())
        assert ("recorded by a person" in page, "finished after" in page) == (False, True)

    def test_a_replaced_result_becomes_readable_with_its_encryption_key(
        self, in_doubt: IdempotencyKey, settings: Any
    ) -> None:
        """It was corrected while that key was missing. Until the key is back, the trail says what is missing."""
        add_step(in_doubt, "mail")  # its decision encrypts the trail with the new key
        for keys, name, result in (([OLD], "charge", "ch_old"), ([NEW, OLD], "mail", 1), ([NEW], "charge", "ch_new")):
            settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": keys}
            record_outcome(row(), name, result)
        assert "What is stored in &#x27;result&#x27; of idempotency key" in page_of(row(), SECRETS)
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW, OLD]}
        for permissions, shown in (((), False), ((SECRETS,), True)):
            page = page_of(row(), *permissions)
            assert ("ch_old" in page, "ch_new" in page) == (shown, shown)

    def test_what_is_encrypted_needs_its_permission(self, in_doubt: IdempotencyKey, settings: Any) -> None:
        """Errors and reasons may quote a request."""
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
        release_for_retry(IdempotencyKey.objects.get(), by="ada", reason="T-7")
        assert "T-7" not in page_of(row())
        assert "Encrypted. To see the text, you need the permission" in page_of(row())
        assert "T-7" in page_of(row(), SECRETS)

    @pytest.mark.parametrize("use_tz", [True, False])
    def test_times_of_before_a_change_of_the_zone_are_sorted(self, use_tz: bool) -> None:
        """`USE_TZ` was changed, as check W004 advises."""
        made = {"action": "release", "by": "ann", "reason": "T-1"}
        times = ("2026-01-02T03:04:05", "2026-01-02T03:04:05+00:00")
        key = make_key(decisions=json.dumps([{**made, "at": at} for at in times]))
        with override_settings(USE_TZ=use_tz):
            assert page_of(key).count("ann released the key") == 3


STORED = {"name": "charge", "kind": "call", "attempt": 1, "started_at": "2026-01-02T03:04:05+00:00", "error": None}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"decisions": json.dumps([{**MADE, **entry}])}, "?: unreadable")
        for entry in (
            {"at": "9999-12-31T23:59:59-12:00"},
            {"by": None},
            {"replaced": 7},
            {"action": "record", "detail": []},
            {"steps": [{**STORED, "kind": []}]},
            {"steps": [{**STORED, "started_at": None}]},
            {"steps": [{name: stored for name, stored in STORED.items() if name != "attempt"}]},
        )
    ]
    + [
        ({"decisions": "[" * 9_000}, "cannot be read: the column &#x27;decisions&#x27;"),
        ({"headers": "5"}, "This response cannot be read."),
        ({"headers": "["}, "This response cannot be read."),
        ({"result": "[" * 9_000}, "This result cannot be read."),
        ({"result": "{"}, "This result cannot be read."),
    ],
)
def test_what_cannot_be_read_is_said_on_every_page(changes: dict[str, str], shown: str) -> None:
    """The rest of the page is still needed."""
    completed = "headers" in changes
    key = make_key(status="completed" if completed else "failed", policy="retry")
    step(key, finished="result" in changes)
    for model, columns in ((IdempotencyKey, ("decisions", "headers")), (IdempotencyStep, ("result",))):
        model.objects.update(**{name: text for name, text in changes.items() if name in columns} or {"attempt": 1})
    client = staff(VIEW, RESOLVE, SECRETS)
    assert shown in client.get(detail(key)).content.decode()
    if not completed:
        for decision in ("record", "answer", "release"):
            assert client.get(address(key, decision), follow=True).status_code == 200


class TestLinks:
    def cells(self, client: Client) -> list[tuple[str, str]]:
        """Resource and caller of each listed key."""
        rows = client.get(reverse(LIST)).context["cl"].result_list
        return [(str(row.shown.resource), str(row.shown.caller)) for row in rows]

    def test_a_user_is_linked(self) -> None:
        """By name, for those who may see users; for others, the scope is shown."""
        ada: User = UserFactory(username="ada")
        key = make_key(scope=f"user:auth.User:{ada.pk}")
        link = f'<a href="{reverse("admin:auth_user_change", args=[ada.pk])}">ada</a>'
        assert self.cells(staff(VIEW, "view_user"))[0][1] == link
        assert self.cells(staff(VIEW))[0][1] == f"user:auth.User:{ada.pk}"
        assert link in page_of(key, "view_user")

    @pytest.mark.parametrize("scope", ["anonymous", "user:no.Model:1", "user:shopapp.Order:1", "user:1"])
    def test_any_other_scope_is_text(self, admin_client: Client, scope: str) -> None:
        """Also that of a model without pages."""
        make_key(scope=scope)
        assert self.cells(admin_client)[0][1] == scope

    def test_a_resource_is_linked_to_its_own_page(self) -> None:
        """By its label or by its name, for those who may see that page."""
        make_key("k-1", resource_type="auth.User", resource_id="59")
        make_key("k-2", resource_type="user", resource_id="59")
        link = f'<a href="{reverse("admin:auth_user_change", args=[59])}">user 59</a>'
        assert [cell[0] for cell in self.cells(staff(VIEW, "view_user"))] == [link, link]
        assert [cell[0] for cell in self.cells(staff(VIEW))] == ["user 59", "user 59"]


class TestTexts:
    @override_settings(TIME_ZONE="Europe/Berlin")
    def test_times_have_seconds_and_the_zone(self) -> None:
        """The called service's books have another. Without `USE_TZ`, Django does not know the zone."""
        assert moment(datetime(2026, 1, 2, 3, 4, 5, 999, tzinfo=UTC)) == (
            "2026-01-02 04:04:05 CET (2026-01-02 03:04:05 UTC)"
        )
        assert moment(datetime(2026, 1, 2, 3, 4, 5)) == "2026-01-02 03:04:05"
        assert moment(None) == "-"
        page = page_of(make_key(created_at=datetime(2026, 7, 1, 1, 2, 3, tzinfo=UTC)))
        assert "2026-07-01 03:02:03 CEST (2026-07-01 01:02:03 UTC)" in page
