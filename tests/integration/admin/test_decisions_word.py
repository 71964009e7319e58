"""What a person may decide about keys in the admin: on the page of one key, and about the keys ticked in the list."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_idempotency.admin.decisions import version
from django_idempotency.engine.stores.sealing import MARK
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import LIST, address, confirm, decide, detail, make_key, page_of, preview, staff, step
from tests.at_rest import NEW
from tests.integration.leased_urls import GATEWAY
from tests.leases import Broken, breaks, row
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.admin_urls")]
VIEW, RESOLVE = "view_idempotencykey", "resolve_idempotencykey"
DANGER = "the customer may be charged twice"
LOOKED = "I looked in the other side&#x27;s books"
SETTLED = "The finished calls are settled"
CHANGED = "There is nothing to decide now: no key is as it was when you opened the page, or none needs it."
ANSWER = {"status": 410, "content_type": "application/json", "body": '{"detail": "cancelled"}'}
HALF = r'{"\ud800": "\udfff"}'
"""JSON with two halves of surrogate pairs."""


def statuses() -> list[str]:
    return list(IdempotencyKey.objects.order_by("pk").values_list("status", flat=True))


def fail_in_doubt(post: Post, key: str) -> IdempotencyKey:
    GATEWAY.after = breaks
    with pytest.raises(Broken):
        post("/pay/hold", key=key)
    GATEWAY.after = lambda: None
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
        IdempotencyStep.objects.update(result='{"value": "ch_7"}')
        page = page_of(operator, key, "answer")
        assert (SETTLED in page, "“charge” has ended" in page, "ch_7" in page) == (True, True, True)
        assert "Look first." in decide(operator, key, "answer")
        assert row().status == "failed"
        assert "Answered by hand" in decide(operator, key, "answer", confirmed="on")

    def test_an_answer_of_a_doubt_is_warned_about(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """Nothing asks again after it. And there is no default status: 200 would say that all is well."""
        page = page_of(operator, in_doubt, "answer")
        assert "After this answer, nothing asks again" in page
        assert '<input type="number" name="status" min="200" max="499" required' in page
        assert "After this answer" not in page_of(operator, make_key(status="failed"), "answer")

    @pytest.mark.parametrize("what", ["hold", "a write in doubt", "no lease"])
    @pytest.mark.parametrize("across", [{}, {"select_across": "1"}])
    def test_one_of_the_selected_keys_is_enough(
        self, operator: Client, keys: list[IdempotencyKey], what: str, across: dict[str, str]
    ) -> None:
        """Also under "retry", which speaks of calls: a repeated write is a second order."""
        if what == "no lease":
            IdempotencyKey.objects.filter(pk=keys[0].pk).update(status="in_progress", locked_until=None)
            keys[0].steps.all().delete()
        elif what == "hold":
            IdempotencyKey.objects.filter(pk=keys[0].pk).update(policy="hold")
        else:
            keys[0].steps.update(kind="write")
        assert "Look first." in confirm(operator, "release_selected", keys, **across).content.decode()
        assert IdempotencyKey.objects.exclude(decisions=None).count() == 0
        confirm(operator, "release_selected", keys, **across, confirmed="on")
        assert IdempotencyKey.objects.exclude(decisions=None).count() == 3

    def test_selected_keys_with_finished_calls(self, operator: Client, keys: list[IdempotencyKey]) -> None:
        """Asked under "select all", too."""
        keys[1].steps.update(finished_at=timezone.now())
        for across in ({}, {"select_across": "1"}):
            assert "Look first." in confirm(operator, "answer_selected", keys, **ANSWER, **across).content.decode()
        confirm(operator, "answer_selected", keys, **ANSWER, confirmed="on")
        assert statuses() == ["completed"] * 3


class TestRecord:
    def test_nothing_is_recorded_before_the_preview(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """What is entered after the preview is previewed again. So is what was previewed for another key."""
        seen = preview(operator, in_doubt, "record", step="charge", result='{"id":1}')
        assert "{&quot;id&quot;: 1}</pre>" in seen.content.decode()
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
        assert "A past result of “charge”, of another key" in page
        assert f"&quot;charge&quot;: &quot;{GATEWAY.charges[0]}&quot;" in page
        assert "wrong" not in page
        assert "A past result" not in page_of(staff(VIEW, RESOLVE), key, "record")
        monkeypatch.setattr("django_idempotency.admin.decisions.EXAMPLES", 1)
        assert "A past result" not in page_of(operator, key, "record")

    @pytest.mark.parametrize("kept", [f"{MARK}x", "no json"])
    def test_an_example_that_cannot_be_read_is_left_out(self, operator: Client, post: Post, kept: str) -> None:
        """The page is needed all the same."""
        post("/pay/hold", key="k-1")
        IdempotencyStep.objects.filter(name="charge").update(result=kept)
        page = page_of(operator, fail_in_doubt(post, "k-2"), "record")
        assert "A past result" not in page
        assert "The return value of the call" in page

    def test_a_row_is_recorded_as_it_is_shown(self, in_doubt: IdempotencyKey) -> None:
        """Of a step that returns a model instance."""
        order = Order.objects.create(reference="by hand")
        shown = f'{{"model": "shopapp.Order", "pk": {order.pk}, "using": "default"}}'
        decide(staff(VIEW, RESOLVE, "view_order"), in_doubt, "record", result=shown)
        assert IdempotencyStep.objects.get().result == shown

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

    def test_a_recorded_result_can_be_corrected(self, operator: Client, post: Post, in_doubt: IdempotencyKey) -> None:
        """A result in a wrong shape no longer breaks the key for ever."""
        decide(operator, in_doubt, "record", result='["ch_1"]')
        with pytest.raises(TypeError):
            post("/pay/hold")
        assert address(row(), "record") in operator.get(detail(row())).content.decode()
        assert "Recorded the outcome" in decide(operator, row(), "record")
        assert post("/pay/hold").json()["charge"] == "ch_1"
        assert address(row(), "record") not in operator.get(detail(row())).content.decode()
        assert GATEWAY.calls == 1

    def test_a_result_of_the_worker_cannot_be_changed(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """The gateway has said it."""
        IdempotencyStep.objects.update(finished_at=timezone.now(), result='{"value": 1}')
        assert CHANGED in decide(operator, in_doubt, "record")


class TestSelected:
    def test_they_are_answered_by_hand(self, operator: Client, keys: list[IdempotencyKey]) -> None:
        """Each key says who, why and with what; the others are left alone."""
        page = confirm(operator, "answer_selected", keys[:2], **ANSWER).content.decode()
        assert "Answered by hand with status 410. Keys: 2." in page
        assert statuses() == ["completed", "completed", "failed"]
        trail = [decisions_of(row) for row in IdempotencyKey.objects.order_by("pk")]
        assert [[(made.action, made.reason) for made in made_] for made_ in trail] == [[("answer", "T-7")]] * 2 + [[]]
        assert LogEntry.objects.count() == 2

    def test_a_key_that_has_changed_is_left_alone(self, operator: Client, keys: list[IdempotencyKey]) -> None:
        """A worker has started another attempt, or holds the key, since the page was opened."""
        IdempotencyKey.objects.filter(pk=keys[0].pk).update(attempt=2)
        later = timezone.now() + timedelta(hours=1)
        IdempotencyKey.objects.filter(pk=keys[1].pk).update(status="in_progress", locked_until=later)
        page = confirm(operator, "answer_selected", keys, **ANSWER).content.decode()
        assert "Answered by hand with status 410. Keys: 1." in page
        assert "or a worker holds them: 2." in page
        assert statuses() == ["failed", "in_progress", "completed"]

    def test_what_was_not_ticked_is_never_decided(self, operator: Client, keys: list[IdempotencyKey]) -> None:
        """Not by "select all", and not by other keys in the form."""
        confirm(operator, "answer_selected", keys[:1], **ANSWER, select_across="1")
        confirm(operator, "answer_selected", keys[1:2], **ANSWER, seen=f"x {version(keys[2])} {keys[2].pk}")
        assert statuses() == ["completed", "failed", "failed"]
        assert "data-actions-icnt" in operator.get(reverse(LIST)).content.decode()

    def test_one_that_cannot_be_decrypted_does_not_stop_the_others(
        self, operator: Client, keys: list[IdempotencyKey], settings: Any
    ) -> None:
        """The page says which encryption key is missing."""
        IdempotencyKey.objects.filter(pk=keys[0].pk).update(decisions=f"{MARK}x")
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
        page = confirm(operator, "answer_selected", keys, **ANSWER).content.decode()
        assert statuses() == ["failed", "completed", "completed"]
        assert page.count("What is stored in &#x27;decisions&#x27;") == 1
        assert "Keys: 2." in page
        assert "or a worker holds them: 1." in page
