"""The index page of the admin: how many keys need attention, for persons who may view keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin import AdminSite, site
from django.db import connections, transaction
from django.test import Client, override_settings
from django.urls import clear_url_caches, path, reverse

from django_idempotency.admin import IdempotencyKeyAdmin
from django_idempotency.models import IdempotencyKey
from tests import urls
from tests.admin_pages import make_key, staff, step
from tests.sql import NO_TABLE, ask, instead

pytestmark = pytest.mark.django_db
ADDRESS = "/admin/django_idempotency/idempotencykey/?state=attention"
UNCOUNTED = "The idempotency keys that need attention cannot be counted."
LISTED = "/admin/django_idempotency/idempotencykey/"
LEVEL = re.compile(r'<div class="idempotency-note (\w+)">')
LINK = re.compile(r'<a href="([^"]*)">([^<]*)</a>')
AFTER = [*(app for app in settings.INSTALLED_APPS if app != "django_idempotency"), "django_idempotency"]


@pytest.fixture(autouse=True)
def _in_doubt() -> None:
    for number in range(2):
        step(make_key(f"k-{number}", status="failed"))


def told(client: Client) -> list[tuple[str, str, str]]:
    """The level of the note, with the address and text of the link to what needs attention, or to all keys."""
    page = client.get(reverse("admin:index"))
    assert page.status_code == 200
    text = page.content.decode()
    assert "Recent actions" in text
    if (level := LEVEL.search(text)) is None:
        return []
    note = text[level.end() : text.index("</div>", level.end())]
    links = LINK.findall(note)
    return [(level[1], *next((link for link in links if "?" in link[0]), links[-1]))]


def test_the_number_stands_on_the_index_page_with_a_link() -> None:
    """The link lists exactly these keys."""
    client = staff("view_idempotencykey")
    assert told(client) == [("errornote", ADDRESS, "Needs attention: 2")]
    assert len(client.get(ADDRESS).context["cl"].result_list) == 2
    IdempotencyKey.objects.all().delete()
    assert told(client) == [("help", LISTED, "Idempotency keys: Nothing needs attention")]


def test_persons_who_may_not_view_keys_see_nothing() -> None:
    """Nor does a project whose admin has no pages of keys."""
    assert told(staff("view_user")) == []
    model_admin = site._registry.pop(IdempotencyKey)
    try:
        assert told(staff("view_idempotencykey")) == []
    finally:
        site._registry[IdempotencyKey] = model_admin


@pytest.mark.parametrize("permission", ["view_user", "view_idempotencykey"])
@pytest.mark.parametrize("counted", [True, pytest.param(False, marks=pytest.mark.only_on("postgresql", "sqlite"))])
def test_it_leaves_no_variable_undefined(permission: str, counted: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Django logs each one."""
    client = staff(permission)
    with caplog.at_level("DEBUG", "django.template"), nullcontext() if counted else instead(*NO_TABLE):
        assert client.get(reverse("admin:index")).status_code == 200
    undefined = [record.getMessage() for record in caplog.records if record.name == "django.template"]
    assert [message for message in undefined if "'paused'" in message or "'headline'" in message] == []


def test_behind_the_admin_in_installed_apps_the_page_is_djangos_own() -> None:
    """Django takes the first template that it finds."""
    with override_settings(INSTALLED_APPS=AFTER):
        assert told(staff("view_idempotencykey")) == []


@pytest.mark.parametrize("paused", [True, lambda: True])
def test_a_pause_is_told(settings: Any, paused: Any) -> None:
    """A callable's, too, which no deployment shows."""
    client, said = staff("view_idempotencykey"), "The protected endpoints are paused: every request to them gets 503."
    assert said not in client.get(reverse("admin:index")).content.decode()
    settings.IDEMPOTENCY = {"PAUSED": paused}
    assert said in client.get(reverse("admin:index")).content.decode()


def test_a_switch_that_fails_does_not_break_the_page(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nor its transaction."""
    settings.IDEMPOTENCY = {"PAUSED": lambda: ask("SELECT no_such_column")}
    assert told(staff("view_idempotencykey")) == [("errornote", ADDRESS, "Needs attention: 2")]
    assert "it is unknown whether requests are paused" in caplog.text


class Tenants(IdempotencyKeyAdmin):
    """Shows a person other keys than the project's other sites."""

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(key="k-1")


class Broken(IdempotencyKeyAdmin):
    def get_queryset(self, request: Any) -> Any:
        raise LookupError("it broke")


class Down(IdempotencyKeyAdmin):
    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).using("gone")


class Unrouted(IdempotencyKeyAdmin):
    def get_urls(self) -> list[Any]:
        return []


@pytest.fixture
def own_site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Mounts a site of the project's own in place of Django's, with Django's name, and with this class for keys."""

    def mount(model_admin: type[IdempotencyKeyAdmin] | None = None) -> None:
        own = AdminSite(name="admin")
        if model_admin is not None:
            own.register(IdempotencyKey, model_admin)
        monkeypatch.setattr(urls, "urlpatterns", [path("admin/", own.urls)])
        clear_url_caches()

    yield mount
    clear_url_caches()


@pytest.mark.parametrize("model_admin", [None, Unrouted])
def test_without_pages_of_keys_there_is_no_link(own_site: Any, model_admin: Any) -> None:
    """A site of the project's own has Django's name, but not our pages."""
    own_site(model_admin)
    assert told(staff("view_idempotencykey")) == []


def test_of_two_sites_with_one_name_the_mounted_one_counts(own_site: Any) -> None:
    """Its class may show fewer keys than the site that Django made."""
    own_site(Tenants)
    assert told(staff("view_idempotencykey")) == [("errornote", ADDRESS, "Needs attention: 1")]


def test_an_error_of_the_project_does_not_break_the_page(own_site: Any, caplog: Any) -> None:
    """The page says that nothing was counted, and the log says why."""
    own_site(Broken)
    assert told(staff("view_idempotencykey")) == [("errornote", ADDRESS, UNCOUNTED)]
    (record,) = caplog.records
    assert (record.name, record.levelname, repr(record.exc_info[1])) == (
        "django_idempotency",
        "ERROR",
        "LookupError('it broke')",
    )


@pytest.mark.only_on("postgresql", "sqlite")  # the others commit when a table is renamed
@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_a_missing_table_does_not_break_the_page(in_a_transaction: bool) -> None:
    """Neither the page nor its transaction, if it has one, as under ATOMIC_REQUESTS."""
    client = staff("view_idempotencykey")
    with instead(*NO_TABLE), transaction.atomic() if in_a_transaction else nullcontext():
        assert told(client) == [("errornote", ADDRESS, UNCOUNTED)]


def test_a_database_of_keys_that_is_down_does_not_break_the_page(own_site: Any, monkeypatch: Any) -> None:
    """The page itself reads another one."""
    nowhere = {**connections["default"].settings_dict, "ENGINE": "django.db.backends.sqlite3", "NAME": "/nowhere/keys"}
    monkeypatch.setitem(connections.settings, "gone", {**nowhere, "OPTIONS": {}})
    own_site(Down)
    try:
        assert told(staff("view_idempotencykey")) == [("errornote", ADDRESS, UNCOUNTED)]
    finally:
        del connections["gone"]
