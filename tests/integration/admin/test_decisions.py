"""What a person may decide about a key in the admin: each decision on a page of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.test import Client
from django.urls import reverse

from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import address, decide, detail, make_key, staff
from tests.integration.leased_urls import GATEWAY
from tests.leases import as_if_killed, row
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.admin_urls")]
VIEW, RESOLVE = "view_idempotencykey", "resolve_idempotencykey"
DECISIONS = ("record", "answer", "release")


class TestDecisions:
    def test_buttons_are_for_those_who_may_and_while_they_apply(self, in_doubt: IdempotencyKey) -> None:
        """Their own permission; recording needs a doubt."""
        page = staff(VIEW, RESOLVE).get(detail(in_doubt)).content.decode()
        assert all(f'href="{address(in_doubt, decision)}"' in page for decision in DECISIONS)
        assert "Release for retry" not in staff(VIEW).get(detail(in_doubt)).content.decode()
        IdempotencyStep.objects.all().delete()
        page = staff(VIEW, RESOLVE).get(detail(in_doubt)).content.decode()
        assert [address(in_doubt, decision) in page for decision in DECISIONS] == [False, True, True]

    @pytest.mark.parametrize("decision", DECISIONS)
    @pytest.mark.parametrize("permissions", [(VIEW,), (RESOLVE,), ()])
    def test_they_need_both_permissions(
        self, in_doubt: IdempotencyKey, decision: str, permissions: tuple[str, ...]
    ) -> None:
        """403, and nothing is changed."""
        client = staff(*permissions)
        assert client.get(address(in_doubt, decision)).status_code == 403
        decide(client, in_doubt, decision)
        assert row().status == "failed"
        assert IdempotencyStep.objects.get().finished_at is None

    @pytest.mark.parametrize(
        ("decision", "text"),
        [
            ("release", "made again, with the same derived key"),
            ("record", "is not made again"),
            ("answer", "Nothing runs again"),
        ],
    )
    def test_a_page_says_what_will_happen(
        self, operator: Client, in_doubt: IdempotencyKey, decision: str, text: str
    ) -> None:
        """And does nothing."""
        before = list(IdempotencyKey.objects.values())
        page = operator.get(address(in_doubt, decision)).content.decode()
        policy = "Policy: hold: wait for a decision"
        for shown in (text, in_doubt.key, "POST pay/hold", "Calls in doubt: charge", "Attempts so far: 1", policy):
            assert shown in page
        assert list(IdempotencyKey.objects.values()) == before

    def test_release(self, operator: Client, post: Post, in_doubt: IdempotencyKey) -> None:
        """The call is made again."""
        assert "Released for retry." in decide(operator, in_doubt, "release")
        assert post("/pay/hold").status_code == 201
        assert (GATEWAY.calls, len(GATEWAY.charges)) == (2, 1)

    def test_record(self, operator: Client, post: Post, in_doubt: IdempotencyKey) -> None:
        """The retry goes on with the pasted answer."""
        assert "Recorded the outcome of the call “charge”." in decide(operator, in_doubt, "record")
        assert post("/pay/hold").json()["charge"] == "ch_1"
        assert (GATEWAY.calls, Order.objects.get().reference) == (1, "ch_1")

    def test_close(self, operator: Client, post: Post, in_doubt: IdempotencyKey) -> None:
        """Retries get the given response."""
        assert "Answered by hand with status 200." in decide(operator, in_doubt, "answer")
        answer = post("/pay/hold")
        assert (answer.status_code, answer.content) == (200, b"refunded by hand")
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Idempotency-Replayed"] == "true"

    @pytest.mark.parametrize(
        ("status", "content_type", "body"),
        [
            (200, "application/json", '{"total": 1.50}'),
            (409, "application/problem+json", '{"title": "refunded"}'),
            (204, "application/json", ""),
        ],
    )
    def test_close_with_json(
        self, operator: Client, post: Post, in_doubt: IdempotencyKey, status: int, content_type: str, body: str
    ) -> None:
        """As it was entered; an answer without a body needs none."""
        decide(operator, in_doubt, "answer", status=status, content_type=content_type, body=body)
        answer = post("/pay/hold")
        assert (answer.status_code, answer.content.decode()) == (status, body)
        assert answer.headers["Content-Type"] == content_type

    @pytest.mark.parametrize("decision", DECISIONS)
    def test_each_is_written_to_the_admins_log(self, operator: Client, in_doubt: IdempotencyKey, decision: str) -> None:
        """Who, what, on which key; shown in its history."""
        decide(operator, in_doubt, decision)
        entry = LogEntry.objects.get()
        assert (entry.action_flag, entry.object_id) == (CHANGE, str(in_doubt.pk))
        assert entry.user_id == int(operator.session["_auth_user_id"])
        history = reverse("admin:django_idempotency_idempotencykey_history", args=[in_doubt.pk])
        assert entry.get_change_message() in operator.get(history).content.decode()

    @pytest.mark.parametrize(
        ("decision", "data", "error"),
        [
            ("record", {"result": "{"}, "This is not JSON"),
            ("record", {"result": "NaN"}, "NaN is not a JSON value"),
            ("record", {"result": "[" * 100_000}, "This is not JSON"),
            ("record", {"step": "mail"}, "Select a valid choice"),
            ("answer", {"status": 500}, "less than or equal to 499"),
            ("answer", {"status": 199}, "greater than or equal to 200"),
            ("answer", {"content_type": "a/b\r\nSet-Cookie: x=1"}, "Select a valid choice"),
            ("answer", {"content_type": "text/html", "body": "<script>"}, "Select a valid choice"),
            ("answer", {"content_type": "image/svg+xml", "body": "<svg>"}, "Select a valid choice"),
            ("answer", {"content_type": "application/json"}, "This is not JSON"),
            ("answer", {"content_type": "application/problem+json", "body": "[NaN]"}, "NaN is not a JSON value"),
            ("answer", {"status": ""}, "This field is required"),
            ("release", {"attempt": ""}, "Please correct"),
            ("release", {"attempt": 10**30}, "Please correct"),
            ("release", {"looked": ""}, "Look first. Under “hold” no call may be made twice."),
            ("release", {"reason": " "}, "This field is required"),
            ("record", {"reason": ""}, "This field is required"),
            ("answer", {"reason": ""}, "This field is required"),
            ("record", {"result": '{"value": {"charge": "ch_1"}}'}, "This is the envelope in which a result is kept"),
            ("record", {"result": '{"model": "shopapp.Order", "pk": 0}'}, "There is no shopapp.Order with the primary"),
            (
                "record",
                {"result": '{"model": "shopapp.Order", "pk": []}'},
                "There is no shopapp.Order with the primary",
            ),
            ("record", {"result": '{"model": "shopapp.Order", "pk": 1, "using": "x"}'}, "There is no shopapp.Order"),
            ("record", {"result": '"' + "x" * 1024**2 + '"'}, "1048576 are kept at most"),
        ],
    )
    def test_bad_input_is_refused_in_the_form(
        self, operator: Client, in_doubt: IdempotencyKey, decision: str, data: dict[str, Any], error: str
    ) -> None:
        """With what is wrong; nothing is changed."""
        page = decide(operator, in_doubt, decision, **data)
        assert error in page
        assert (row().status, LogEntry.objects.count()) == ("failed", 0)

    @pytest.mark.parametrize("decision", DECISIONS)
    def test_a_later_attempt_is_refused(self, operator: Client, in_doubt: IdempotencyKey, decision: str) -> None:
        """A worker has started another attempt since the page was opened."""
        IdempotencyKey.objects.update(attempt=2)
        assert "this key has changed since you opened the page" in decide(operator, in_doubt, decision)
        assert (row().status, LogEntry.objects.count()) == ("failed", 0)

    @pytest.mark.parametrize("decision", DECISIONS)
    def test_a_live_lease_is_refused(self, operator: Client, post: Post, decision: str) -> None:
        """On the page as well as behind it."""
        pages: list[str] = []

        def look() -> None:
            pages.append(operator.get(address(row(), decision), follow=True).content.decode())
            pages.append(decide(operator, row(), decision))

        GATEWAY.before = look
        assert post("/pay/hold").status_code == 201
        assert all("There is nothing to decide about this key now." in page for page in pages)
        assert LogEntry.objects.count() == 0

    def test_a_lease_that_is_over_is_no_obstacle(self, operator: Client, post: Post, in_doubt: IdempotencyKey) -> None:
        """The worker has died in the call."""
        as_if_killed()
        decide(operator, in_doubt, "record")
        assert post("/pay/hold").json()["attempt"] == 2

    def test_a_completed_key_needs_no_decision(self, operator: Client, post: Post) -> None:
        """The page of the key says so."""
        post("/pay")
        for decision in DECISIONS:
            assert "There is nothing to decide" in decide(operator, row(), decision)

    @pytest.mark.parametrize("decision", DECISIONS)
    @pytest.mark.parametrize("pk", [0, 10**30])
    def test_an_unknown_key_is_not_found(self, operator: Client, decision: str, pk: int) -> None:
        """404, also for a number that no database column holds; without permission still 403."""
        gone = reverse(f"admin:django_idempotency_idempotencykey_{decision}", args=[pk])
        assert operator.get(gone).status_code == 404
        assert operator.post(gone, {"attempt": 1}).status_code == 404
        assert staff(VIEW).get(gone).status_code == 403

    def test_pages_do_not_run_what_a_client_sent(self, operator: Client) -> None:
        """Keys and scopes are a client's text."""
        key = make_key("<script>x</script>", scope="<b>", operation="<i>", status="failed")
        for page in (detail(key), address(key, "release")):
            text = operator.get(page).content.decode()
            assert "<script>x" not in text
            assert "&lt;script&gt;x" in text
