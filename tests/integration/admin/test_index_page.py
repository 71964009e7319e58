"""The index page of the admin: how many keys need attention, for persons who may view keys."""

from __future__ import annotations

import re

import pytest
from django.conf import settings
from django.contrib.admin import site
from django.test import Client, override_settings
from django.urls import reverse

from django_idempotency.models import IdempotencyKey
from tests.admin_pages import LIST, make_key, staff, step
from tests.sql import NO_TABLE, instead

pytestmark = pytest.mark.django_db
NOTE = re.compile(r'<p class="(\w+)"><a href="([^"]*)">([^<]*)</a></p>')
AFTER = [*(app for app in settings.INSTALLED_APPS if app != "django_idempotency"), "django_idempotency"]


@pytest.fixture(autouse=True)
def _in_doubt() -> None:
    for number in range(2):
        step(make_key(f"k-{number}", status="failed"))


def told(client: Client) -> list[tuple[str, str, str]]:
    page = client.get(reverse("admin:index"))
    assert page.status_code == 200
    assert "Recent actions" in page.content.decode()
    return NOTE.findall(page.content.decode())


def test_the_number_stands_on_the_index_page_with_a_link() -> None:
    """The link lists exactly these keys."""
    address = f"{reverse(LIST)}?state=attention"
    client = staff("view_idempotencykey")
    assert told(client) == [("errornote", address, "Idempotency keys: Needs attention: 2")]
    assert len(client.get(address).context["cl"].result_list) == 2
    IdempotencyKey.objects.all().delete()
    assert told(client) == [("help", address, "Idempotency keys: Nothing needs attention")]


def test_persons_who_may_not_view_keys_see_nothing() -> None:
    """Nor does a project whose admin has no pages of keys."""
    assert told(staff("view_user")) == []
    model_admin = site._registry.pop(IdempotencyKey)
    try:
        assert told(staff("view_idempotencykey")) == []
    finally:
        site._registry[IdempotencyKey] = model_admin


def test_behind_the_admin_in_installed_apps_the_page_is_djangos_own() -> None:
    """Django takes the first template that it finds."""
    with override_settings(INSTALLED_APPS=AFTER):
        assert told(staff("view_idempotencykey")) == []


@pytest.mark.only_on("postgresql")
def test_a_database_that_cannot_be_asked_does_not_break_the_page() -> None:
    """Neither the page nor its transaction, if it has one. Here the table is missing, as before `migrate`."""
    client = staff("view_idempotencykey")
    with instead(*NO_TABLE):
        ((style, _, text),) = told(client)
    assert (style, text) == ("errornote", "The idempotency keys that need attention cannot be counted.")
