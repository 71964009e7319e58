"""What a person may decide about keys in the admin: on the page of one key, and about the keys ticked in the list."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_idempotency import ResultNotStorable
from django_idempotency.admin import IdempotencyKeyAdmin
from django_idempotency.admin.decisions import version
from django_idempotency.maintenance import needs_attention, release_for_retry
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import LIST, address, confirm, decide, detail, make_key, page_of, preview, send, staff, step
from tests.leased_urls import GATEWAY, leave_in_doubt
from tests.leases import row
from tests.shopapp.models import Order
from tests.step_rows import recount

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin_urls")]
VIEW, RESOLVE = "view_idempotencykey", "resolve_idempotencykey"
DECISIONS = ("record", "answer", "release")
CHANGED = "Nothing to decide: the keys have changed since you opened the page, or need no decision."
ANSWER = {"status": 410, "content_type": "application/json", "body": '{"detail": "cancelled"}', "confirmed": "on"}


@pytest.mark.uncounted
class TestWho:
    def test_buttons_are_for_those_who_may_and_while_they_apply(self, in_doubt: IdempotencyKey) -> None:
        """The safe decisions come first, and only the harmful one is red. Recording needs a doubt."""
        page = staff(VIEW, RESOLVE).get(detail(in_doubt)).content.decode()
        places = [page.index(f'href="../{decision}/"') for decision in DECISIONS]
        assert places == sorted(places)
        assert 'class="button idempotency-danger" href="../release/"' in page
        assert page.count("idempotency-danger") == 1
        assert "Release for retry" not in staff(VIEW).get(detail(in_doubt)).content.decode()
        IdempotencyStep.objects.all().delete()
        page = staff(VIEW, RESOLVE).get(detail(in_doubt)).content.decode()
        assert [f'href="../{decision}/"' in page for decision in DECISIONS] == [False, True, True]

    def test_a_lost_value_is_entered_by_the_form(self, post: Post, operator: Client) -> None:
        """The retry goes on with it: one charge, its order, and nothing to do any more."""
        GATEWAY.result = lambda key: object()
        with pytest.raises(ResultNotStorable):
            post("/pay")
        decide(operator, row(), "record", result='{"charge": "ch_1"}')
        assert (post("/pay").json()["charge"], GATEWAY.calls) == ("ch_1", 1)
        assert (row().status, needs_attention().count(), Order.objects.get().reference) == ("completed", 0, "ch_1")

    @pytest.mark.parametrize("action", ["answer_selected", "release_selected"])
    def test_an_action_needs_the_permission(self, keys: list[IdempotencyKey], action: str) -> None:
        """Without it, there are no actions, and a forged form does nothing."""
        client = staff(VIEW, "view_response")
        assert 'name="action"' not in client.get(reverse(LIST)).content.decode()
        confirm(client, action, keys, **ANSWER)
        assert {key.decisions for key in IdempotencyKey.objects.all()} == {None}

    @pytest.mark.parametrize("rule", ["has_resolve_permission", "has_view_permission", "may_decide"])
    def test_a_projects_own_rule_holds_on_the_page_and_in_the_list(
        self, operator: Client, keys: list[IdempotencyKey], monkeypatch: pytest.MonkeyPatch, rule: str
    ) -> None:
        """One function is asked for both: this project lets nobody decide, or not about this key."""

        class Own(IdempotencyKeyAdmin):
            pass

        def refuses(model_admin: Any, request: Any, obj: Any = None) -> bool:
            return rule != "has_resolve_permission" and (obj is None or obj.key != "k-0")

        setattr(Own, rule, refuses)
        monkeypatch.setattr(site._registry[IdempotencyKey], "__class__", Own)
        assert operator.get(address(keys[0], "release")).status_code == 403
        decide(operator, keys[0], "release")
        confirm(operator, "release_selected", keys)
        decided = {key.key for key in IdempotencyKey.objects.exclude(decisions=None)}
        assert decided == (set() if rule == "has_resolve_permission" else {"k-1", "k-2"})

    def test_keys_need_the_permission_for_responses(self, keys: list[IdempotencyKey]) -> None:
        """References are shown instead, and no results."""
        IdempotencyStep.objects.update(finished_at=timezone.now(), result='{"value": "ch_secret"}')
        client = staff(VIEW, RESOLVE)
        for page in (send(client, "answer_selected", keys).content.decode(), page_of(client, keys[0], "answer")):
            assert (keys[0].reference in page, ">k-0<" in page, "ch_secret" in page) == (True, False, False)


class TestWhatHappens:
    @pytest.mark.parametrize(
        ("decision", "text"),
        [
            ("release", "made again, with the same derived key"),
            ("record", "is not made again"),
            ("answer", "nothing runs again"),
        ],
    )
    def test_a_page_says_what_will_happen(
        self, operator: Client, in_doubt: IdempotencyKey, decision: str, text: str
    ) -> None:
        """And does nothing."""
        before = list(IdempotencyKey.objects.values())
        page = page_of(operator, in_doubt, decision)
        policy = "Policy: hold: wait for a decision"
        name = f"{in_doubt.key} ({in_doubt.reference})"
        asked = f"In doubt: charge (derived key: <code>{GATEWAY.charges[0]}</code>"
        for shown in (text, name, "POST pay/hold", asked, "Attempts so far: 1", policy, f"Caller: {in_doubt.scope}"):
            assert shown in page
        assert list(IdempotencyKey.objects.values()) == before

    @pytest.mark.parametrize(
        ("status", "content_type", "body"),
        [
            (200, "text/plain; charset=utf-8", "refunded by hand"),
            (200, "application/json", '{"total": 1.50}'),
            (409, "application/problem+json", '{"title": "refunded"}'),
            (204, "application/json", ""),
        ],
    )
    def test_answer(
        self, operator: Client, post: Post, in_doubt: IdempotencyKey, status: int, content_type: str, body: str
    ) -> None:
        """Retries get it as it was entered and previewed. An answer without a body needs none."""
        entered = {"status": status, "content_type": content_type, "body": body}
        seen = preview(operator, in_doubt, "answer", **entered)
        assert seen.context["form"].preview == f"HTTP {status}\nContent-Type: {content_type}\n\n{body}"
        assert row().status == "failed"
        assert f"Closed with status {status}." in decide(operator, in_doubt, "answer", **entered)
        answer = post("/pay/hold")
        assert (answer.status_code, answer.content.decode()) == (status, body)
        assert answer.headers["Content-Type"] == content_type
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Idempotency-Replayed"] == "true"

    @pytest.mark.parametrize("decision", DECISIONS)
    def test_it_is_told_who_decided_what_when_and_why(
        self, operator: Client, in_doubt: IdempotencyKey, decision: str
    ) -> None:
        """On the page of the key above all else, and in the admin's log without the reason."""
        page = decide(operator, in_doubt, decision, reason="T-7: seen in the books")
        (made,) = decisions_of(row())
        assert (made.action, made.reason) == (decision, "T-7: seen in the books")
        above = page[page.index("Last decision") : page.index("idempotency-timeline")]
        assert made.by in above
        assert "Reason: T-7: seen in the books" in above
        entry = LogEntry.objects.get()
        assert (entry.action_flag, entry.object_id) == (CHANGE, str(in_doubt.pk))
        assert in_doubt.key not in entry.object_repr  # the log is kept for ever, and a key may be a secret
        assert entry.user_id == int(operator.session["_auth_user_id"])

    def test_the_history_has_the_decision_of_a_command(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """The button "History" leads to the timeline, because Django's log knows the decisions of the admin only."""
        said = ["--by", "cron", "--reason", "T-9", "--apply", "--calls-did-not-happen"]
        call_command("resolve_idempotency_keys", "--id", str(in_doubt.pk), "--release", *said, stdout=StringIO())
        history = reverse("admin:django_idempotency_idempotencykey_history", args=[in_doubt.pk])
        page = operator.get(history, follow=True).content.decode()
        assert "cron released the key for a retry" in page
        assert history in page


class TestRefused:
    @pytest.mark.parametrize(
        ("decision", "data", "error"),
        [
            ("record", {"result": "{"}, "This is not JSON"),
            ("record", {"result": "NaN"}, "NaN is not a JSON value"),
            ("record", {"result": "[" * 100_000}, "This is not JSON"),
            ("record", {"step": "mail"}, "Select a valid choice"),
            ("answer", {"status": 500}, "less than or equal to 499"),
            ("answer", {"status": 199}, "greater than or equal to 200"),
            ("answer", {"status": ""}, "This field is required"),
            ("answer", {"content_type": "a/b\r\nSet-Cookie: x=1"}, "Select a valid choice"),
            ("answer", {"content_type": "text/html", "body": "<script>"}, "Select a valid choice"),
            ("answer", {"content_type": "application/json"}, "This is not JSON"),
            ("answer", {"content_type": "application/problem+json", "body": "[NaN]"}, "NaN is not a JSON value"),
            ("release", {"seen": ""}, CHANGED),
            ("release", {"confirmed": ""}, "Look first, then confirm."),
            ("release", {"reason": " "}, "This field is required"),
            ("record", {"reason": ""}, "This field is required"),
            ("answer", {"reason": ""}, "This field is required"),
            ("record", {"result": '{"value": {"charge": "ch_1"}}'}, "This is the envelope in which a result is stored"),
            ("record", {"result": '{"model": "shopapp.Order", "pk": 0}'}, "There is no shopapp.Order with the primary"),
            ("record", {"result": '{"model": "shopapp.Order", "pk": 1, "using": "x"}'}, "There is no shopapp.Order"),
            ("record", {"result": '{"model": "shopapp.Order", "pk": "\\u0000"}'}, "There is no shopapp.Order with"),
            ("record", {"result": '{"model": "shopapp.Order", "pk": "\\ud800"}'}, "There is no shopapp.Order with"),
            ("record", {"result": '{"model": "auth.User", "pk": 1}'}, "You need the permission to view auth.User."),
            ("record", {"result": '"' + "x" * 1024**2 + '"'}, "at most 1048576 can be kept"),
        ],
    )
    def test_bad_input(self, in_doubt: IdempotencyKey, decision: str, data: dict[str, Any], error: str) -> None:
        """With what is wrong; nothing is changed."""
        client = staff(VIEW, RESOLVE, "view_response", "view_order")
        assert error in decide(client, in_doubt, decision, **data)
        assert (row().decisions, LogEntry.objects.count()) == (None, 0)

    def test_which_rows_exist_is_told_only_to_those_who_may_view_them(self, in_doubt: IdempotencyKey) -> None:
        """Else the form would answer for any primary key of any model."""
        order = Order.objects.create(reference="made")
        client = staff(VIEW, RESOLVE, "view_response")
        answers = {
            "You need the permission to view shopapp.Order."
            in decide(client, in_doubt, "record", result=f'{{"model": "shopapp.Order", "pk": {pk}}}')
            for pk in (order.pk, order.pk + 1)
        }
        assert answers == {True}

    @pytest.mark.parametrize("decision", DECISIONS)
    @pytest.mark.parametrize("change", ["another attempt", "another decision"])
    def test_a_key_that_has_changed(
        self, operator: Client, in_doubt: IdempotencyKey, decision: str, change: str
    ) -> None:
        """Since the page was opened, a worker has started another attempt, or another person has decided."""
        lapsed = {"attention_at": None, "status": "in_progress", "locked_until": timezone.now()}
        IdempotencyKey.objects.update(**(lapsed if change == "another attempt" else {"attention_at": timezone.now()}))
        assert CHANGED in decide(operator, in_doubt, decision)
        assert (row().decisions, LogEntry.objects.count()) == (None, 0)

    @pytest.mark.parametrize("decision", DECISIONS)
    def test_a_completed_key(self, operator: Client, decision: str) -> None:
        """It needs no decision."""
        assert CHANGED in decide(operator, make_key(), decision)
        assert CHANGED in send(operator, "release_selected", [row()]).content.decode()

    @pytest.mark.parametrize("decision", DECISIONS)
    @pytest.mark.parametrize("trail", ["[", "7", '{"a": 1}'])
    def test_a_trail_that_cannot_be_read(
        self, operator: Client, in_doubt: IdempotencyKey, decision: str, trail: str
    ) -> None:
        """The pages say so, and no decision is added to it."""
        IdempotencyKey.objects.update(decisions=trail)
        assert "cannot be read" in operator.get(detail(in_doubt)).content.decode()
        assert "cannot be read" in decide(operator, row(), decision)
        assert (row().decisions, LogEntry.objects.count()) == (trail, 0)


DANGER = "This may charge the customer twice"
LOOKED = "I checked the called service&#x27;s books"
SETTLED = "The calls are settled"
HALF = r'{"\ud800": "\udfff"}'
"""JSON with two halves of surrogate pairs."""


def statuses() -> list[str]:
    return list(IdempotencyKey.objects.order_by("pk").values_list("status", flat=True))


def fail_in_doubt(post: Post, key: str) -> IdempotencyKey:
    leave_in_doubt(post, key=key)
    return IdempotencyKey.objects.get(key=key)


class TestWord:
    """What a person has to say before a decision that could do harm."""

    @pytest.mark.parametrize(("policy", "asked"), [("hold", True), (None, True), ("retry", False)])
    def test_a_release_of_what_is_held(
        self, operator: Client, in_doubt: IdempotencyKey, policy: str | None, asked: bool
    ) -> None:
        """The danger is named under each policy."""
        IdempotencyKey.objects.update(policy=policy)
        page = page_of(operator, in_doubt, "release")
        assert (DANGER in page, LOOKED in page) == (True, asked)
        assert ("Released for retry." in decide(operator, row(), "release", confirmed="")) is not asked

    def test_an_answer_after_finished_calls(self, operator: Client) -> None:
        """The results are shown: what was charged must exist, or the money went back."""
        key = make_key("half", status="failed", policy="retry")
        step(key, finished=True)
        page = page_of(operator, key, "answer")
        assert (SETTLED in page, "“charge” finished" in page, "ch_1" in page) == (True, True, True)
        assert "Look first, then confirm." in decide(operator, key, "answer", confirmed="")
        assert row().status == "failed"
        assert "Closed with status" in decide(operator, key, "answer")

    @pytest.mark.parametrize("what", ["hold", "a write in doubt", "no lease"])
    @pytest.mark.parametrize("across", [{}, {"select_across": "1"}])
    def test_one_of_the_selected_keys_is_enough(
        self, operator: Client, keys: list[IdempotencyKey], what: str, across: dict[str, str]
    ) -> None:
        """Also under "retry", which speaks of calls: a repeated write is a second order."""
        first = IdempotencyKey.objects.filter(pk=keys[0].pk)
        if what == "no lease":
            first.update(attention_at=None, status="in_progress", locked_until=None)
            keys[0].steps.all().delete()
            recount(keys[0])  # reads the row again
        elif what == "hold":
            first.update(policy="hold")
        else:
            keys[0].steps.update(kind="write")
        assert "Look first, then confirm." in confirm(operator, "release_selected", keys, **across).content.decode()
        assert IdempotencyKey.objects.exclude(decisions=None).count() == 0
        confirm(operator, "release_selected", keys, **across, confirmed="on")
        assert IdempotencyKey.objects.exclude(decisions=None).count() == 3


class TestRecord:
    def test_nothing_is_recorded_before_the_preview(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """What is entered after the preview is previewed again. So is what was previewed for another key."""
        seen = preview(operator, in_doubt, "record", step="charge", result='{"id":1}')
        assert "{&quot;id&quot;: 1}" in seen.content.decode()
        changed = {"step": "charge", "result": '{"id":2}', "previewed": seen.context["previewed"]}
        assert "&quot;id&quot;: 2" in preview(operator, in_doubt, "record", **changed).content.decode()
        other = make_key("other", status="failed")
        step(other)
        preview(operator, other, "record", **{**changed, "result": '{"id":1}'})
        assert not IdempotencyStep.objects.exclude(finished_at=None).exists()

    def test_a_past_result_of_the_step_is_the_example(
        self, operator: Client, post: Post, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The newest under a completed key of the same operation, among the latest results."""
        assert post("/pay/hold", key="k-1").status_code == 201
        step(make_key("other operation"), finished=True)
        IdempotencyStep.objects.filter(key__key="other operation").update(result='{"value": "wrong"}')
        key = fail_in_doubt(post, "k-2")
        page = page_of(operator, key, "record")
        assert "An earlier result of “charge”, from another key" in page
        assert f"&quot;charge&quot;: &quot;{GATEWAY.charges[0]}&quot;" in page
        assert "wrong" not in page
        assert "An earlier result" not in page_of(staff(VIEW, RESOLVE), key, "record")
        monkeypatch.setattr("django_idempotency.maintenance.earlier.LATEST", 1)
        assert "An earlier result" not in page_of(operator, key, "record")

    @pytest.mark.parametrize("result", ['{"model": "gpt", "pk": 1}', HALF, '"\\ud800"', '"\\u0000"'])
    def test_a_value_is_recorded_as_the_call_would_return_it(
        self, operator: Client, in_doubt: IdempotencyKey, result: str
    ) -> None:
        """Also what only looks like a row, and half a character, which the pages spell out."""
        assert "Recorded the outcome" in decide(operator, in_doubt, "record", result=result)
        assert IdempotencyStep.objects.get().result == f'{{"value": {result}}}'
        assert operator.get(detail(in_doubt)).status_code == 200
        assert "Recorded the outcome" in decide(operator, row(), "record", result="1")  # a correction
        assert operator.get(detail(in_doubt)).status_code == 200


class TestSelected:
    def test_they_are_answered_by_hand(self, operator: Client, keys: list[IdempotencyKey]) -> None:
        """Each key says who, why and with what; the others are left alone."""
        page = confirm(operator, "answer_selected", keys[:2], **ANSWER).content.decode()
        assert "Closed with status 410. Keys: 2." in page
        assert statuses() == ["completed", "completed", "failed"]
        trail = [decisions_of(row) for row in IdempotencyKey.objects.order_by("pk")]
        assert [[(made.action, made.reason) for made in made_] for made_ in trail] == [[("answer", "T-7")]] * 2 + [[]]
        assert LogEntry.objects.count() == 2

    def test_a_key_that_has_changed_is_left_alone(self, operator: Client, keys: list[IdempotencyKey]) -> None:
        """A worker has started another attempt, or holds the key, since the page was opened."""
        IdempotencyKey.objects.filter(pk=keys[0].pk).update(attempt=2, attention_at=timezone.now())
        later = timezone.now() + timedelta(hours=1)
        IdempotencyKey.objects.filter(pk=keys[1].pk).update(attention_at=None, status="in_progress", locked_until=later)
        page = confirm(operator, "answer_selected", keys, **ANSWER).content.decode()
        assert "Closed with status 410. Keys: 1." in page
        assert "or a worker holds them: 2." in page
        assert statuses() == ["failed", "in_progress", "completed"]

    def test_a_change_at_the_last_moment(
        self, operator: Client, keys: list[IdempotencyKey], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The decision looks again under its lock. The changed key has no entry in the log."""

        def late(key: IdempotencyKey, **said: Any) -> None:
            IdempotencyKey.objects.filter(pk=keys[0].pk).update(attempt=2, attention_at=timezone.now())
            release_for_retry(key, **said)

        monkeypatch.setattr("django_idempotency.admin.forms.release_for_retry", late)
        page = confirm(operator, "release_selected", keys).content.decode()
        assert "Released for retry. Keys: 2." in page
        assert "or a worker holds them: 1." in page
        assert (IdempotencyKey.objects.exclude(decisions=None).count(), LogEntry.objects.count()) == (2, 2)

    def test_what_was_not_ticked_is_never_decided(self, operator: Client, keys: list[IdempotencyKey]) -> None:
        """Not by "select all", and not by other keys in the form."""
        confirm(operator, "answer_selected", keys[:1], **ANSWER, select_across="1")
        confirm(operator, "answer_selected", keys[1:2], **ANSWER, seen=f"x {version(keys[2])} {keys[2].pk}")
        assert statuses() == ["completed", "failed", "failed"]
        assert "data-actions-icnt" in operator.get(reverse(LIST)).content.decode()

    def test_one_whose_trail_was_changed_does_not_stop_the_others(
        self, operator: Client, keys: list[IdempotencyKey]
    ) -> None:
        """The page says what has to be put right."""
        IdempotencyKey.objects.filter(pk=keys[0].pk).update(decisions="[")
        page = confirm(operator, "answer_selected", keys, **ANSWER).content.decode()
        assert statuses() == ["failed", "completed", "completed"]
        assert page.count("the column &#x27;decisions&#x27; is not a JSON list") == 1
        assert ("Keys: 2." in page, "or a worker holds them: 1." in page) == (True, True)
