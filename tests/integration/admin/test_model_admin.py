"""The admin of keys: what it shows to whom, and that nothing can be changed."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from django_idempotency.keys import key_reference
from tests.admin_pages import LIST, detail, make_key, staff

pytestmark = pytest.mark.django_db


def test_without_the_view_permission_nothing_is_shown() -> None:
    """Being staff is not enough."""
    row = make_key()
    assert staff().get(reverse(LIST)).status_code == 403
    assert staff("view_response").get(detail(row)).status_code == 403


def test_a_key_that_is_gone_is_no_error(admin_client: Client) -> None:
    """Cleanup may have deleted it."""
    row = make_key()
    row_page = detail(row)
    row.delete()
    assert admin_client.get(row_page).status_code == 302


def test_the_body_needs_its_own_permission() -> None:
    """A support agent sees that there is a response, not what it says."""
    row = make_key()
    page = staff("view_idempotencykey").get(detail(row)).content.decode()
    assert "POST orders/" in page
    assert "total" not in page
    assert "Can view stored response bodies" in page
    page = staff("view_idempotencykey", "view_response").get(detail(row)).content.decode()
    assert "&quot;total&quot;: 7" in page
    assert "application/json" in page


def test_nothing_can_be_changed(admin_client: Client) -> None:
    """Not even by a superuser: no add, change or delete."""
    row = make_key()
    assert admin_client.get(reverse("admin:django_idempotency_idempotencykey_add")).status_code == 403
    assert admin_client.post(detail(row), {"key": "x"}).status_code == 403
    assert admin_client.post(detail(row).replace("change", "delete"), {"post": "yes"}).status_code == 403
    assert b"delete_selected" not in admin_client.get(reverse(LIST)).content


def test_the_key_needs_the_permission_for_its_response(admin_client: Client) -> None:
    """Where callers are anonymous, the key gets the response: who may not see one does not see the other."""
    row = make_key("very-secret", scope="anonymous", status="failed", last_error="ValueError")
    decision = reverse("admin:django_idempotency_idempotencykey_release", args=[row.pk])
    pages = [reverse(LIST), detail(row), decision, detail(row).replace("change", "history")]
    pages += [f"{reverse(LIST)}?state=stuck", f"{reverse(LIST)}?state=failed"]
    for client, seen in (
        (staff("view_idempotencykey", "resolve_idempotencykey"), False),
        (staff("view_idempotencykey", "resolve_idempotencykey", "view_response"), True),
    ):
        shown = [client.get(page).content.decode() for page in pages]
        assert all("very-secret" not in page for page in shown[3:5])
        assert [("very-secret" in page) for page in (*shown[:3], shown[5])] == [seen] * 4
        assert all(row.reference in page for page in (*shown[:4], shown[5]))
        found = client.get(reverse(LIST), {"q": "very-secret"}).context["cl"].result_list
        assert [key.pk for key in found] == [row.pk]


def test_the_admins_log_does_not_hold_the_key() -> None:
    """Django keeps it for ever: the text of a row names the operation and the reference."""
    row = make_key("very-secret")
    assert str(row) == f"POST orders/ {row.reference}"
    assert row.reference == key_reference("very-secret") == "b644133604bf9963"
