"""The page of a key: what it shows to whom, the story, the timeline, the response, and links."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from django_idempotency.admin.story import story_of
from django_idempotency.admin.texts import moment, readable_body, readable_operation, shortened
from django_idempotency.engine.stores.sealing import MARK
from django_idempotency.keys import key_reference
from django_idempotency.maintenance import Snapshot, close_with, record_outcome, release_for_retry
from django_idempotency.maintenance.facts import facts_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import HOUR, LIST, detail, make_key, staff, step
from tests.at_rest import NEW, OLD
from tests.factories import UserFactory
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, breaks, lapse, row

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.admin_urls")]
VIEW, RESOLVE, SECRETS = "view_idempotencykey", "resolve_idempotencykey", "view_response"
NEVER = "never, while it needs attention"
STUCK: dict[str, Any] = {"status": "in_progress", "locked_until": datetime(2026, 7, 1, 1, 2, 3, tzinfo=UTC)}
HIDDEN = "Encrypted. You need the permission “Can view stored response bodies” to see the text."


def page_of(key: IdempotencyKey, *permissions: str) -> str:
    return staff(VIEW, *permissions).get(detail(key)).content.decode()


class TestWhoSeesWhat:
    def test_without_the_view_permission_nothing_is_shown(self) -> None:
        """Being staff is not enough. A key that cleanup has deleted is no error."""
        row = make_key()
        assert staff().get(reverse(LIST)).status_code == 403
        assert staff(SECRETS).get(detail(row)).status_code == 403
        page = detail(row)
        row.delete()
        assert staff(VIEW).get(page).status_code == 302

    def test_the_response_needs_its_own_permission(self) -> None:
        """A support agent sees that there is a response, not what it says."""
        row = make_key(policy="hold", worker="web-3:4711")
        page = page_of(row)
        assert "POST orders/" in page
        assert "hold: wait for a decision" in page
        assert "web-3:4711" in page
        assert ("total" in page, "application/json" in page) == (False, False)
        assert "Can view stored response bodies" in page
        page = page_of(row, SECRETS)
        assert "&quot;total&quot;: 7" in page
        assert "application/json" in page

    def test_the_key_needs_the_permission_for_its_response(self) -> None:
        """Where callers are anonymous, the key gets the response: who may not see one does not see the other."""
        row = make_key("very-secret", scope="anonymous", status="failed", last_error="ValueError")
        assert str(row) == f"POST orders/ {row.reference}"  # which Django's log keeps for ever
        assert row.reference == key_reference("very-secret") == "b644133604bf9963"
        decision = reverse("admin:django_idempotency_idempotencykey_release", args=[row.pk])
        pages = [reverse(LIST), detail(row), decision, f"{reverse(LIST)}?state=failed"]
        history = detail(row).replace("change", "history")
        for permissions, seen in (((), False), ((SECRETS,), True)):
            client = staff(VIEW, RESOLVE, *permissions)
            shown = [client.get(page).content.decode() for page in pages]
            assert ["very-secret" in page for page in shown] == [seen] * 4
            assert seen or all(row.reference in page for page in shown)
            assert "very-secret" not in client.get(history).content.decode()
            found = client.get(reverse(LIST), {"q": "very-secret"}).context["cl"].result_list
            assert [key.pk for key in found] == [row.pk]

    def test_nothing_can_be_changed(self, admin_client: Client) -> None:
        """Not even by a superuser: no add, change or delete."""
        row = make_key()
        assert admin_client.get(reverse("admin:django_idempotency_idempotencykey_add")).status_code == 403
        assert admin_client.post(detail(row), {"key": "x"}).status_code == 403
        assert admin_client.post(detail(row).replace("change", "delete"), {"post": "yes"}).status_code == 403
        assert b"delete_selected" not in admin_client.get(reverse(LIST)).content


class TestResponse:
    def test_bodies_are_escaped(self) -> None:
        """A stored response may hold what a client sent."""
        row = make_key(body=b"<script>alert(1)</script>", headers='[["Content-Type","text/html"]]')
        page = page_of(row, SECRETS)
        assert "<script>alert(1)" not in page
        assert "&lt;script&gt;alert(1)" in page

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b'{"a":[1]}', '{\n  "a": [\n    1\n  ]\n}'),
            (b"{broken", "{broken"),
            (b'{"amount":19.9,"n":[]}', '{\n  "amount": 19.9,\n  "n": []\n}'),
            (b'{"amount":1.10}', '{"amount":1.10}'),
            (b"[1E5]", "[1E5]"),
            (b"[1e999]", "[1e999]"),
            (b"[-0]", "[-0]"),
            (b"[" + b"9" * 5000 + b"]", "[" + "9" * 5000 + "]"),
            (b'{"a":{},"a":[]}', '{"a":{},"a":[]}'),
            (b"[" * 21 + b"]" * 21, "[" * 21 + "]" * 21),
            (b'["Gr\\u00fc\\u00dfe", "\\ud800", "a\\"]"]', '[\n  "Grüße",\n  "\\ud800",\n  "a\\"]"\n]'),
            (b"7", "7"),
            ("Grüße".encode(), "Grüße"),
            (b"\x89PNG", "4 bytes that are no text in UTF-8"),
            (b"x" * 70000, "x" * 65536 + "\n… (70000 bytes in all)"),
            (b"[" + b"1," * 40000, "[" + "1," * 32767 + "1" + "\n… (80001 bytes in all)"),
        ],
    )
    def test_bodies_are_readable(self, body: bytes, text: str) -> None:
        """Cut at 64 KiB. JSON is indented unless that would change a number or lose a name."""
        assert readable_body(IdempotencyKey(headers="[]", body=body)) == text

    def test_a_small_body_does_not_become_a_large_page(self) -> None:
        """9,000 brackets indented in full would be 80 MB, 30,000 numbers at the deepest level more than 1 MB."""
        for body in (b"[" * 9000 + b"]" * 9000, b"[" * 19 + b"1," * 30_000 + b"1" + b"]" * 19):
            assert len(readable_body(IdempotencyKey(headers="[]", body=body))) < 70_000

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"body": b'["\\ud83d"]'}, "\\ud83d"),
            ({"headers": '[[":reason","\\ud83d"]]'}, "\\ud83d"),
            ({"body": None}, "Not stored."),
            ({"headers": "[broken"}, "This response cannot be read."),
        ],
    )
    def test_what_no_page_can_encode_or_read_is_no_error(self, fields: dict[str, Any], text: str) -> None:
        """Half a surrogate pair, a tombstone, and what was changed in the database."""
        assert text in page_of(make_key(**fields), SECRETS)


class TestEncrypted:
    @pytest.fixture(autouse=True)
    def _encrypted(self, settings: Any) -> None:
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}

    def fail_after_the_charge(self, post: Post) -> None:
        """A key with a result, an error of a call, and an error of its own."""
        HOOKS["between"] = lambda operation: operation.call("mail", breaks)
        with pytest.raises(Broken):
            post("/pay")
        HOOKS["between"] = lambda operation: operation.call("mail", str)  # what is in doubt must be asked for

    def test_with_the_permission_everything_is_decrypted(self, post: Post) -> None:
        """Body, headers, results and errors. Without it nothing is, errors neither; names of steps are shown."""
        self.fail_after_the_charge(post)
        text = page_of(row(), SECRETS)
        assert GATEWAY.charges[0] in text
        assert text.count("Broken: it broke, token=****") == 2
        text = page_of(row())
        assert (text.count(HIDDEN), text.count("it broke"), "&quot;charge&quot;" in text) == (2, 0, False)
        assert all(f"<strong>{name}</strong>" in text for name in ("charge", "mail"))
        assert MARK not in text
        post("/pay")
        text = page_of(row(), SECRETS)
        assert "&quot;attempt&quot;: 2" in text
        assert "application/json" in text

    def test_errors_of_before_the_setting_are_shown_to_both(self, post: Post, settings: Any) -> None:
        """As they were: switching encryption on hides no text that is plain in the table."""
        settings.IDEMPOTENCY = {}
        self.fail_after_the_charge(post)
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
        assert [page_of(row(), *may).count("Broken: it broke") for may in ((), (SECRETS,))] == [2, 2]

    @pytest.mark.parametrize("setting", [{"ENCRYPTION_KEYS": [NEW]}, {}], ids=["another key", "switched off"])
    def test_what_cannot_be_decrypted_says_so(self, post: Post, settings: Any, setting: Any) -> None:
        """In its place: the rest of the page is what an operator needs."""
        self.fail_after_the_charge(post)
        settings.IDEMPOTENCY = setting
        text = page_of(row(), SECRETS)
        assert text.count("IDEMPOTENCY[&#x27;ENCRYPTION_KEYS&#x27;]") == 3
        assert "Whether these calls took effect: mail." in text
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
        post("/pay")
        settings.IDEMPOTENCY = setting
        text = page_of(row(), SECRETS)
        assert "What is stored in &#x27;headers&#x27; of idempotency key" in text
        assert MARK not in text


def told(doubt: bool = False, call: bool = False, **fields: Any) -> Any:
    key = make_key(**fields)
    if doubt:
        step(key)
    if call:
        step(key, finished=True)
    return story_of(facts_of([key])[0])


class TestStory:
    """A key in words: what happened, what is certain, what is not, and what comes next."""

    def test_in_doubt_under_hold(self) -> None:
        """The call may have taken effect, and no retry makes it again."""
        story = told(doubt=True, status="failed", policy="hold")
        assert story.happened == "Attempt 1 ended without a final response."
        assert story.certain == "No step has a result."
        assert story.uncertain.startswith("Whether these calls took effect: charge. They were started and have no res")
        assert "by its derived key only if the view has sent that key" in story.uncertain
        assert story.without_decision.endswith(f"an order without a charge. Expires: {NEVER}.")
        assert story.next_retry.startswith("It is refused with 409, and no call is made again.")
        assert "books of the other side" in story.to_do

    def test_in_doubt_under_retry(self) -> None:
        """The next retry makes the call again. The worker that claimed the key may still be alive."""
        story = told(doubt=True, **STUCK, policy="retry", worker="web-3:4711")
        assert "has died or is too slow: its lease was over at 2026-06-30 20:02:03 CDT." in story.happened
        assert story.next_retry.startswith(
            "The view runs again, and makes the calls in doubt again with the same deriv"
        )
        assert story.to_do.startswith("First make sure that the worker web-3:4711 (host:process) is dead")

    def test_a_worker_that_has_reported_its_failure_is_not_waited_for(self) -> None:
        """It lives on, and serves other requests."""
        assert "web-3" not in told(doubt=True, status="failed", policy="hold", worker="web-3:4711").to_do

    def test_a_write_in_doubt(self) -> None:
        """It is never repeated, under no policy."""
        key = make_key(status="failed", policy="retry")
        step(key)
        IdempotencyStep.objects.update(kind="write")
        story = story_of(facts_of([key])[0])
        assert "A write ended its own transaction in the middle." in story.uncertain
        assert story.next_retry == "It is refused with 409. A person has to decide."

    @pytest.mark.parametrize("written", [False, True])
    def test_half_done(self, written: bool) -> None:
        """What is missing is told, and not what is usually missing."""
        key = make_key(status="failed", policy="hold")
        step(key, finished=True)
        if written:
            now = timezone.now()
            times = {"started_at": now, "finished_at": now}
            IdempotencyStep.objects.create(key=key, name="order", kind="write", attempt=1, **times)
        story = story_of(facts_of([key])[0])
        assert story.certain == f"These steps have ended: charge{', order' if written else ''}."
        assert story.uncertain == (
            "Nothing. The local writes have ended, too: order. If no step follows, only the answer is missing."
            if written
            else "Nothing. But no local write has ended: what belongs to these calls is missing, such as an order."
        )
        assert NEVER in story.without_decision
        assert story.next_retry.startswith("The view runs again. Steps that have ended are not repeated")

    def test_stuck_without_a_call(self) -> None:
        """Harmless."""
        story = told(**STUCK)
        assert story.certain == "No step was started: nothing has happened outside."
        assert (story.uncertain, story.next_retry) == ("", "The view runs again.")
        assert story.without_decision.startswith("No harm is done")

    def test_a_view_that_ended_its_own_transaction(self) -> None:
        """What it wrote is kept, and retries are refused."""
        story = told(status="in_progress")
        assert story.happened == "The view ended its own transaction and did not come to its end."
        assert story.certain == "What the view wrote before the end of its transaction is kept."
        assert story.uncertain == "Which part of its work the view has done."
        assert story.without_decision == f"The key stays as it is, and retries are refused. Expires: {NEVER}."
        assert story.next_retry == "It is refused with 409. A person has to decide."
        assert "ended its own transaction" in story.to_do

    def test_in_flight(self) -> None:
        """Nothing to do, and nothing in doubt."""
        story = told(doubt=True, status="in_progress", locked_until=timezone.now() + HOUR)
        assert story.happened.startswith("A worker is at work on attempt 1. It holds the lease until ")
        assert story.without_decision == "The worker ends, or a retry takes the key over after the lease."
        assert story.next_retry == "A retry is told that the request is still being processed."
        assert story.uncertain == ""

    def test_failed(self) -> None:
        """Nothing has happened outside."""
        story = told(status="failed", expires_at=datetime(2026, 7, 1, tzinfo=UTC))
        assert story.without_decision.startswith("The key expires at 2026-06-30 19:00:00 CDT.")
        assert story.next_retry == "The view runs again."

    @pytest.mark.parametrize(
        ("body", "retry"),
        [(b"{}", "It gets the kept response."), (None, "It is told that the operation has ended, and that the res")],
    )
    def test_completed(self, body: bytes | None, retry: str) -> None:
        """With its response, or without."""
        story = told(body=body)
        assert story.happened == "The operation has ended with status 201."
        assert story.certain == "The response is kept."
        assert story.next_retry.startswith(retry)
        assert story.next_retry.endswith("Nothing runs again.")

    def test_when_it_expires(self, settings: Any) -> None:
        """While it needs attention, the time in its column does not count, unless the project says so."""
        busy = make_key("busy", status="in_progress", locked_until=timezone.now() + HOUR)
        assert "never, while it is in progress" in page_of(busy)
        key = make_key(**STUCK, expires_at=datetime(2026, 7, 1, tzinfo=UTC))
        assert f'<div class="readonly">{NEVER}</div>' in page_of(key)
        settings.IDEMPOTENCY = {"UNSETTLED_TTL": timedelta(days=30)}
        assert "2026-07-30 19:00:00 CDT (UNSETTLED_TTL): cleanup then deletes the key and logs an error" in page_of(key)


class TestTimeline:
    def test_it_tells_what_happened(self, post: Post, in_doubt: IdempotencyKey) -> None:
        """Steps in their order, the error of the call, and the derived key for the other side's books."""
        page = page_of(in_doubt, SECRETS)
        assert "external call, attempt 1" in page
        assert "Broken: it broke, token=****" in page
        derived = GATEWAY.charges[0]
        assert f"<code>{derived}</code>" in page
        assert f'data-copy="{derived}"' in page
        assert post("/pay").status_code == 201
        page = page_of(IdempotencyKey.objects.get(operation="POST pay"), SECRETS)
        places = ("Claimed", "<strong>charge", "<strong>order", "<strong>Completed with status 201")
        assert [page.index(place) for place in places] == sorted(page.index(place) for place in places)

    def test_results_are_shown_as_they_would_be_pasted(self, post: Post) -> None:
        """Not the envelope in which they are kept; of a row, what names the row. They need their permission."""
        post("/pay")
        page = page_of(row(), SECRETS)
        assert f"{{\n  &quot;charge&quot;: &quot;{GATEWAY.charges[0]}&quot;\n}}</pre>" in page
        assert "&quot;value&quot;" not in page
        assert "&quot;model&quot;: &quot;shopapp.Order&quot;" in page
        assert "&quot;shopapp.Order&quot;" not in page_of(row())

    @pytest.mark.parametrize(
        ("result", "text"),
        [
            (None, "Done, but the result could not be stored."),
            ("{broken", "This result cannot be read."),
            ("[7]", "[\n  7\n]"),
        ],
    )
    def test_a_result_that_cannot_be_shown_is_told(self, post: Post, result: str | None, text: str) -> None:
        """The call is done."""
        post("/pay")
        IdempotencyStep.objects.update(result=result)
        assert text in page_of(row(), SECRETS)

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

    def test_a_call_without_result_under_a_completed_key_is_not_in_doubt(self, post: Post) -> None:
        """The view has dealt with it. A kind of step of a later version is shown by its name."""
        post("/pay")
        IdempotencyStep.objects.filter(name="charge").update(finished_at=None, result=None, kind="later")
        page = page_of(row())
        assert "<strong>charge</strong> no result" in page
        assert "later, attempt 1" in page

    def test_nothing_that_was_in_doubt_disappears(self, post: Post, in_doubt: IdempotencyKey) -> None:
        """A release deletes the step, and the timeline keeps what it was, who released it, when and why."""
        release_for_retry(in_doubt.pk, attempt=1, by="ada", reason="T-7 <b>")
        assert post("/pay/hold").status_code == 201
        page = page_of(row())
        assert "T-7 &lt;b&gt;" in page
        assert "charge (external call, attempt 1), started 2" in page
        assert page.count("Broken: it broke, token=****") == 1
        assert page.index("ada released the key for a retry") < page.index("<strong>charge</strong>")
        assert "ada released the key for a retry, 2" in page  # the last decision, above the timeline

    def test_a_corrected_result_is_shown_to_those_who_may(self, in_doubt: IdempotencyKey) -> None:
        """The old one, too."""
        for charge in ("ch_old", "ch_new"):
            record_outcome(in_doubt.pk, "charge", {"charge": charge}, attempt=1, by="ada", reason="T-7")
        for permissions, shown in (((), False), ((SECRETS,), True)):
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
        assert "T-7" in page_of(row(), SECRETS)

    @pytest.mark.parametrize("use_tz", [True, False])
    def test_times_of_before_a_change_of_the_zone_are_sorted(self, use_tz: bool) -> None:
        """`USE_TZ` was changed, as check W004 advises."""
        made = {"action": "release", "by": "ann", "reason": "T-1"}
        times = ("2026-01-02T03:04:05", "2026-01-02T03:04:05+00:00")
        key = make_key(decisions=json.dumps([{**made, "at": at} for at in times]))
        with override_settings(USE_TZ=use_tz):
            assert page_of(key).count("ann released the key") == 3

    @pytest.mark.parametrize("finished", [None, timezone.now()], ids=["in doubt", "finished"])
    def test_a_key_with_10000_steps_has_a_page(
        self, finished: datetime | None, django_assert_max_num_queries: Any
    ) -> None:
        """It took half a minute when each step read all of them: each step more costs the same."""
        key, now = make_key(status="failed", policy="hold"), timezone.now()
        steps = [
            IdempotencyStep(key=key, name=f"s{number}", kind="call", attempt=1, started_at=now, finished_at=finished)
            for number in range(10_000)
        ]
        IdempotencyStep.objects.bulk_create(steps)
        client, start = staff(VIEW, RESOLVE, SECRETS), timezone.now()
        with django_assert_max_num_queries(12):
            page = client.get(detail(key)).content.decode()
        assert page.count("</time>") == 10_002
        assert timezone.now() - start < timedelta(seconds=15)


class TestLinks:
    def cells(self, client: Client) -> list[tuple[str, str]]:
        """Resource and caller of each listed key."""
        rows = client.get(reverse(LIST)).context["cl"].result_list
        return [(str(row.shown.resource), str(row.shown.caller)) for row in rows]

    def test_a_user_is_linked_by_name(self) -> None:
        """For those who may see users; for others, the scope is shown."""
        ada: User = UserFactory(username="ada")
        key = make_key(scope=f"user:auth.User:{ada.pk}")
        link = f'<a href="{reverse("admin:auth_user_change", args=[ada.pk])}">ada</a>'
        assert self.cells(staff(VIEW, "view_user"))[0][1] == link
        assert self.cells(staff(VIEW))[0][1] == f"user:auth.User:{ada.pk}"
        assert link in page_of(key, "view_user")

    @pytest.mark.parametrize(
        "scope", ["anonymous", "user:auth.User:x", "user:auth.User:0", "user:no.Model:1", "user:shopapp.Order:1"]
    )
    def test_any_other_scope_is_text(self, admin_client: Client, scope: str) -> None:
        """Also one of the project's own that looks like a user, a deleted user, and a model without pages."""
        make_key(scope=scope)
        assert self.cells(admin_client)[0][1] == scope

    def test_a_resource_is_linked_to_its_own_page(self) -> None:
        """By its label or by its name, for those who may see that page."""
        make_key("k-1", resource_type="auth.User", resource_id="59")
        make_key("k-2", resource_type="user", resource_id="59")
        link = f'<a href="{reverse("admin:auth_user_change", args=[59])}">user 59</a>'
        assert [cell[0] for cell in self.cells(staff(VIEW, "view_user"))] == [link, link]
        assert [cell[0] for cell in self.cells(staff(VIEW))] == ["user 59", "user 59"]

    @pytest.mark.parametrize("type_", ["order", "no.Model", "a.b.c", "shopapp.Order"])
    def test_what_has_no_page_is_text(self, admin_client: Client, type_: str) -> None:
        """The name of a thing, or a model that is not in the admin."""
        make_key(resource_type=type_, resource_id="59")
        assert self.cells(admin_client)[0][0] == f"{type_.rpartition('.')[2].lower()} 59"


class TestTexts:
    @override_settings(TIME_ZONE="Europe/Berlin")
    def test_times_have_seconds_and_the_zone(self) -> None:
        """The other side's books have another. Without `USE_TZ`, Django does not know the zone."""
        assert moment(datetime(2026, 1, 2, 3, 4, 5, 999, tzinfo=UTC)) == "2026-01-02 04:04:05 CET"
        assert moment(datetime(2026, 1, 2, 3, 4, 5)) == "2026-01-02 03:04:05"
        assert moment(None) == "-"
        page = page_of(make_key(created_at=datetime(2026, 7, 1, 1, 2, 3, tzinfo=UTC)))
        assert "2026-07-01 03:02:03 CEST" in page

    @pytest.mark.parametrize(
        ("operation", "shown"),
        [
            ("POST orders/<int:pk>/", "POST orders/<int:pk>/"),
            ("POST ^orders/$", "POST orders/"),
            ("POST api/^orders/(?P<pk>[^/.]+)/refund/$", "POST api/orders/<pk>/refund/"),
            ("stripe", "stripe"),
            ("charge $", "charge"),
        ],
    )
    def test_operations(self, operation: str, shown: str) -> None:
        """Without the marks of a regular expression."""
        assert readable_operation(operation).strip() == shown

    def test_long_texts(self) -> None:
        """Shortened, with the whole text as the title, escaped."""
        assert shortened("123456789012") == "123456789012"
        assert shortened("<23456789012>") == '<span title="&lt;23456789012&gt;">&lt;23456789012…</span>'
