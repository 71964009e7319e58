"""The admin of keys: what it shows to whom, and that nothing can be changed."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from tests.admin_pages import LIST, detail, make_key, staff

pytestmark = pytest.mark.django_db


def test_without_the_view_permission_nothing_is_shown() -> None:
    """Being staff is not enough."""
    row = make_key()
    assert staff().get(reverse(LIST)).status_code == 403
    assert staff("view_response").get(detail(row)).status_code == 403


def test_the_body_needs_its_own_permission() -> None:
    """A support agent sees that there is a response, not what it says."""
    row = make_key()
    page = staff("view_idempotencykey").get(detail(row)).content.decode()
    assert "k-1" in page
    assert "total" not in page
    assert "Can view stored response bodies" in page
    page = staff("view_idempotencykey", "view_response").get(detail(row)).content.decode()
    assert "&quot;total&quot;: 7" in page
    assert "application/json" in page


def test_nothing_can_be_changed(admin_client: Client) -> None:
    """Not even by a superuser: no add, change, delete or action."""
    row = make_key()
    assert admin_client.get(reverse("admin:django_idempotency_idempotencykey_add")).status_code == 403
    assert admin_client.post(detail(row), {"key": "x"}).status_code == 403
    assert admin_client.post(detail(row).replace("change", "delete"), {"post": "yes"}).status_code == 403
    assert b'name="action"' not in admin_client.get(reverse(LIST)).content
