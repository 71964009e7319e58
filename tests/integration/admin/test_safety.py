"""What keeps an operator from harm: the order of the buttons, previews, examples, corrections, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import address, decide, detail, make_key, staff, step
from tests.at_rest import NEW, OLD
from tests.integration.leased_urls import GATEWAY
from tests.leases import Broken, breaks, row
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.admin_urls")]
VIEW, RESOLVE = "view_idempotencykey", "resolve_idempotencykey"
DANGER = "the customer may be charged twice"
LOOKED = "I looked in the other side&#x27;s books"


def page_of(client: Client, key: IdempotencyKey, decision: str) -> str:
    return client.get(address(key, decision)).content.decode()


def preview(client: Client, key: IdempotencyKey, decision: str, **data: Any) -> Any:
    """The page after the first click."""
    return client.post(address(key, decision), {"attempt": key.attempt, "reason": "T-7", **data})


class TestRelease:
    def test_it_stands_last_and_red(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """The safe decisions come first."""
        page = operator.get(detail(in_doubt)).content.decode()
        places = [page.index(address(in_doubt, decision)) for decision in ("record", "answer", "release")]
        assert places == sorted(places)
        assert f'class="button idempotency-danger" href="{address(in_doubt, "release")}"' in page
        assert page.count("idempotency-danger") == 1

    @pytest.mark.parametrize(("policy", "looked"), [("hold", True), (None, True), ("retry", False)])
    def test_under_hold_the_operator_has_looked(
        self, operator: Client, in_doubt: IdempotencyKey, policy: str | None, looked: bool
    ) -> None:
        """The danger is named under each policy. A key of version 0.1 does not know its policy, and counts as held."""
        IdempotencyKey.objects.update(policy=policy)
        page = page_of(operator, in_doubt, "release")
        assert DANGER in page
        assert (LOOKED in page) is looked
        done = decide(operator, row(), "release", looked="")
        assert ("Released for retry." in done) is not looked

    def test_without_a_doubt_there_is_no_danger(self, operator: Client) -> None:
        """Nothing is done twice."""
        key = make_key(status="failed", policy="hold")
        page = page_of(operator, key, "release")
        assert DANGER not in page
        assert LOOKED not in page


class TestRecord:
    def test_nothing_is_recorded_before_the_preview(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """What is entered after the preview is previewed again."""
        seen = preview(operator, in_doubt, "record", step="charge", result='{"id":1}')
        assert "{\n  &quot;id&quot;: 1\n}</pre>" in seen.content.decode()
        changed = {"step": "charge", "result": '{"id":2}', "previewed": seen.context["previewed"]}
        assert "&quot;id&quot;: 2" in preview(operator, in_doubt, "record", **changed).content.decode()
        assert IdempotencyStep.objects.get().finished_at is None

    def test_a_past_result_of_the_step_is_the_example(self, operator: Client, post: Post) -> None:
        """The newest under a completed key of the same operation. Another operation may call something else so."""
        assert post("/pay/hold", key="k-1").status_code == 201
        step(make_key("other operation"), finished=True)
        IdempotencyStep.objects.filter(key__key="other operation").update(result='{"value": "wrong"}')
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay/hold", key="k-2")
        key = IdempotencyKey.objects.get(key="k-2")
        page = page_of(operator, key, "record")
        assert "A past result of “charge”, of another key" in page
        assert f"&quot;charge&quot;: &quot;{GATEWAY.charges[0]}&quot;" in page
        assert "wrong" not in page
        assert "A past result" not in page_of(staff(VIEW, RESOLVE), key, "record")
        warned = preview(operator, key, "record", step="charge", result='{"id": 1}').content.decode()
        assert "The example also has these names: charge." in warned
        warned = preview(operator, key, "record", step="charge", result="[]").content.decode()
        assert "The example is of another type." in warned
        fine = preview(operator, key, "record", step="charge", result='{"charge": "ch_1"}').content.decode()
        assert "The example also" not in fine

    def test_an_example_that_cannot_be_decrypted_is_left_out(self, operator: Client, post: Post, settings: Any) -> None:
        """The page is needed all the same."""
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
        post("/pay/hold", key="k-1")
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay/hold", key="k-2")
        page = page_of(operator, IdempotencyKey.objects.get(key="k-2"), "record")
        assert "A past result" not in page
        assert "The return value of the call" in page

    def test_an_example_is_looked_for_among_the_latest_results(
        self, operator: Client, post: Post, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Never among all steps of the table."""
        post("/pay/hold", key="k-1")
        post("/pay", key="k-2")
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay/hold", key="k-3")
        key = IdempotencyKey.objects.get(key="k-3")
        assert "A past result" in page_of(operator, key, "record")
        monkeypatch.setattr("django_idempotency.admin.limits.EXAMPLES", 1)
        assert "A past result" not in page_of(operator, key, "record")

    def test_an_envelope_that_the_step_returns_is_accepted(self, operator: Client, post: Post) -> None:
        """The example shows it."""
        GATEWAY.result = lambda key: {"value": key, "charge": key}
        post("/pay/hold", key="k-1")
        IdempotencyStep.objects.filter(name="charge").update(result='{"value": {"value": "ch_1"}}')
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay/hold", key="k-2")
        key = IdempotencyKey.objects.get(key="k-2")
        assert "Recorded the outcome" in decide(operator, key, "record", result='{"value": "ch_2"}')

    def test_a_row_is_recorded_as_it_is_shown(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """Of a step that returns a model instance."""
        order = Order.objects.create(reference="by hand")
        shown = f'{{"model": "shopapp.Order", "pk": {order.pk}, "using": "default"}}'
        assert "Recorded the outcome" in decide(operator, in_doubt, "record", result=shown)
        assert IdempotencyStep.objects.get().result == shown

    def test_what_only_looks_like_a_row_is_a_value(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """No model has this name."""
        decide(operator, in_doubt, "record", result='{"model": "gpt", "pk": 1}')
        assert IdempotencyStep.objects.get().result == '{"value": {"model": "gpt", "pk": 1}}'

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
        assert "There is nothing to decide" in decide(operator, in_doubt, "record")


class TestAnswer:
    def test_there_is_no_default_status(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """200 for a refunded order would tell the client that all is well."""
        page = page_of(operator, in_doubt, "answer")
        assert '<input type="number" name="status" min="200" max="499" required' in page

    def test_it_warns_of_a_doubt(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """Nothing asks again after the answer."""
        assert "After this answer, nothing asks again" in page_of(operator, in_doubt, "answer")
        assert "After this answer" not in page_of(operator, make_key(status="failed"), "answer")

    def test_the_preview_is_what_the_client_gets(self, operator: Client, in_doubt: IdempotencyKey) -> None:
        """Nothing is answered before the second click."""
        entered = {"status": 409, "content_type": "application/json", "body": '{"a": 1}'}
        seen = preview(operator, in_doubt, "answer", **entered)
        assert seen.context["preview"] == 'HTTP 409\nContent-Type: application/json\n\n{"a": 1}'
        assert row().status == "failed"


@pytest.mark.parametrize("decision", ["record", "answer", "release"])
def test_after_each_the_page_says_who_decided_what_when_and_why(
    operator: Client, in_doubt: IdempotencyKey, decision: str
) -> None:
    """Above all else, and in the timeline."""
    page = decide(operator, in_doubt, decision, reason="T-7: seen in the books")
    made = decisions_of(row())[0]
    assert made.by.startswith("user")
    assert made.reason == "T-7: seen in the books"
    above = page[page.index("Last decision") : page.index("idempotency-timeline")]
    assert made.by in above
    assert "Reason: T-7: seen in the books" in above


def test_the_runbook_is_linked(operator: Client, in_doubt: IdempotencyKey, settings: Any) -> None:
    """Beside what to do."""
    assert "Runbook" not in operator.get(detail(in_doubt)).content.decode()
    settings.IDEMPOTENCY = {"RUNBOOK_URL": "https://wiki.example.com/keys"}
    for page in (operator.get(detail(in_doubt)).content.decode(), page_of(operator, in_doubt, "answer")):
        assert '<a href="https://wiki.example.com/keys" rel="noopener noreferrer">Runbook</a>' in page
