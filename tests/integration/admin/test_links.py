"""What a key is about and who has sent it, each with a link to its page."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from tests.admin_pages import LIST, detail, make_key, staff
from tests.at_rest import NEW, OLD
from tests.factories import UserFactory
from tests.integration.leased_urls import GATEWAY, HOOKS

pytestmark = pytest.mark.django_db


def cells(client: Client, **query: str) -> list[tuple[str, str]]:
    """Resource and caller of each listed key."""
    rows = client.get(reverse(LIST), query).context["cl"].result_list
    return [(str(row.resource_link), str(row.caller_link)) for row in rows]


def user_page(pk: Any) -> str:
    return reverse("admin:auth_user_change", args=[pk])


class TestCaller:
    def test_a_user_is_linked_by_name(self) -> None:
        """For those who may see users; for others, the scope is shown."""
        ada: User = UserFactory(username="ada")
        key = make_key(scope=f"user:auth.User:{ada.pk}")
        link = f'<a href="{user_page(ada.pk)}">ada</a>'
        assert cells(staff("view_idempotencykey", "view_user"))[0][1] == link
        assert cells(staff("view_idempotencykey"))[0][1] == f"user:auth.User:{ada.pk}"
        assert link in staff("view_idempotencykey", "view_user").get(detail(key)).content.decode()

    @pytest.mark.parametrize(
        "scope", ["anonymous", "user:auth.User:x", "user:auth.User:0", "user:no.Model:1", "user:shopapp.Order:1"]
    )
    def test_any_other_scope_is_text(self, admin_client: Client, scope: str) -> None:
        """Also one of the project's own that looks like a user, a deleted user, and a model without pages."""
        make_key(scope=scope)
        assert cells(admin_client)[0][1] == scope


class TestResource:
    def test_it_is_linked_to_its_own_page(self) -> None:
        """By its label or by its name, for those who may see that page."""
        make_key("k-1", resource_type="auth.User", resource_id="59")
        make_key("k-2", resource_type="user", resource_id="59")
        link = f'<a href="{user_page(59)}">user 59</a>'
        assert [cell[0] for cell in cells(staff("view_idempotencykey", "view_user"))] == [link, link]
        assert [cell[0] for cell in cells(staff("view_idempotencykey"))] == ["user 59", "user 59"]

    @pytest.mark.parametrize("type_", ["order", "no.Model", "a.b.c", "shopapp.Order"])
    def test_what_has_no_page_is_text(self, admin_client: Client, type_: str) -> None:
        """The name of a thing, or a model that is not in the admin."""
        make_key(resource_type=type_, resource_id="59")
        assert cells(admin_client)[0][0] == f"{type_.rpartition('.')[2].lower()} 59"


def located(address: str) -> str:
    return f'[["Content-Type","text/plain"],["location","{address}"]]'


class TestLocation:
    def test_without_a_resource_it_is_the_link(self, admin_client: Client) -> None:
        """As the view has answered."""
        make_key("k-1", headers=located("/orders/59/"))
        make_key("k-2", headers=located("/orders/60/"), resource_type="order", resource_id="60")
        link = '<a href="/orders/59/" rel="noopener noreferrer">/orders/59/</a>'
        assert [cell[0] for cell in cells(admin_client)] == ["order 60", link]

    @pytest.mark.parametrize("address", ["javascript:alert(1)", "//evil.example", "59/", "data:text/html,x"])
    def test_only_a_page_is_linked(self, admin_client: Client, address: str) -> None:
        """The view may have taken the address from a client."""
        make_key(headers=located(address))
        assert cells(admin_client)[0][0] == address

    def test_it_needs_the_permission_for_responses(self) -> None:
        """As all headers do."""
        make_key(headers=located("/orders/59/"))
        assert cells(staff("view_idempotencykey"))[0][0] == "-"

    @pytest.mark.urls("tests.integration.admin_urls")
    def test_one_that_cannot_be_decrypted_is_left_out(self, admin_client: Client, settings: Any, post: Any) -> None:
        """The list is needed all the same."""
        GATEWAY.reset()
        HOOKS.clear()
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
        assert post("/pay").status_code == 201
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
        assert cells(admin_client)[0][0] == "-"
