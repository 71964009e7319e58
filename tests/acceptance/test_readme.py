from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.test import Client, override_settings
from django.urls import clear_url_caches, include, path
from django.views.decorators.http import require_POST

from django_idempotency.conf import OPTION_NAMES, SETTING_NAMES, Idempotency, settings
from tests.shopapp import models

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
needs_drf = pytest.mark.skipif(find_spec("rest_framework") is None, reason="about the REST framework")


def blocks(page: str) -> dict[str, str]:
    """The page's python blocks by the file name in their first line."""
    found = re.findall(r"```python\n# (\S+)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert len(found) == (ROOT / page).read_text().count("```python")
    return dict(found)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Execute a block as a module of a project whose shop is the tests' one."""
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.models", models)

    def execute(page: str, name: str, **given: Any) -> SimpleNamespace:
        module = ModuleType("documented")
        monkeypatch.setitem(sys.modules, "documented", module)
        vars(module).update(given)
        exec(compile(blocks(page)[name], f"{page}:{name}", "exec"), vars(module))
        return SimpleNamespace(**vars(module))

    return execute


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make these routes the project's; give a function that posts twice under one key."""
    with override_settings(ROOT_URLCONF="documented_urls"):

        def routes(*urlpatterns: Any) -> Any:
            module = ModuleType("documented_urls")
            module.urlpatterns = list(urlpatterns)  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, "documented_urls", module)
            return twice

        yield routes


def twice(client: Client, url: str, data: dict[str, Any]) -> None:
    first, again = (client.post(url, data, headers={"Idempotency-Key": '"one"'}) for _ in range(2))
    assert (first.status_code, first["Idempotency-Replayed"]) == (201, "false")
    assert (again.status_code, again["Idempotency-Replayed"]) == (201, "true")
    assert first.content == again.content
    assert models.Order.objects.count() == 1


@pytest.mark.django_db
def test_the_first_example_creates_one_order(run, serve, client):
    """Posted twice under one key, it creates one order and answers with the same bytes."""
    views = run("README.md", "shop/views.py")

    serve(path("orders/", views.create_order))(client, "/orders/", {"reference": "a book", "amount": 1})


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["reorder", "OrderView"])
def test_the_examples_with_a_login_create_one_order(name, run, serve, client, django_user_model):
    """Function and class, each below its login check, which comes first."""
    view = getattr(run("README.md", "shop/members.py"), name)
    send = serve(path("again/", view.as_view() if isinstance(view, type) else view))
    assert client.post("/again/", {"amount": 1}, headers={"Idempotency-Key": "one"}).status_code == 302
    client.force_login(django_user_model.objects.create_user("somebody"))

    send(client, "/again/", {"amount": 1})


@needs_drf
@pytest.mark.django_db
@pytest.mark.parametrize("url", ["/api/orders/", "/api/orders/sample/"])
def test_the_viewset_creates_one_order(url, run, serve, client):
    """The standard action and the project's own one."""
    from rest_framework.routers import DefaultRouter

    router = DefaultRouter()
    router.register("orders", run("README.md", "shop/api.py").OrderViewSet)

    serve(path("api/", include(router.urls)))(client, url, {"reference": "a book", "amount": 1})


@needs_drf
@pytest.mark.django_db
def test_the_viewset_has_the_options_it_shows(run, serve, client):
    """`None` is not protected, `required=False` runs without a key, the rest wants one."""
    from rest_framework.routers import DefaultRouter

    router = DefaultRouter()
    router.register("orders", run("README.md", "shop/api.py").OrderViewSet)
    serve(path("api/", include(router.urls)))
    order = models.Order.objects.create(reference="a book", amount=1)

    patched = client.patch(f"/api/orders/{order.pk}/", {"amount": 2}, content_type="application/json")
    assert (patched.status_code, "Idempotency-Replayed" in patched) == (200, False)
    assert client.post("/api/orders/sample/").status_code == 201
    assert client.post("/api/orders/", {"reference": "a book", "amount": 1}).status_code == 400


@pytest.mark.parametrize("page", ["README.md", "docs/options.md"])
def test_the_settings_are_accepted(page, run):
    """The `IDEMPOTENCY` dict of the page is one that the package reads."""
    shown = run(page, "settings.py", INSTALLED_APPS=[])

    with override_settings(IDEMPOTENCY=shown.IDEMPOTENCY):
        assert isinstance(settings().options, Idempotency)


@pytest.mark.django_db(transaction=True)
def test_the_task_cleans_up(run):
    """The function for a task queue runs, here on an empty table."""
    assert run("docs/operations.md", "shop/tasks.py").nightly() == 0


def test_the_test_of_the_endpoints_finds_what_is_unprotected(run, serve):
    """It passes with the protected view, and fails with another one beside it."""
    check = run("docs/endpoints.md", "shop/tests.py").test_whatever_creates_an_order_is_protected
    view = run("README.md", "shop/views.py").create_order
    clear_url_caches()
    serve(path("orders/", view))
    check()
    clear_url_caches()
    serve(path("orders/", view), path("plain/", require_POST(view.__wrapped__.__wrapped__.__wrapped__)))
    with pytest.raises(AssertionError):
        check()


def test_every_python_block_is_executed_by_a_test_here():
    """A new block in a page needs a test above."""
    assert {page: list(blocks(page)) for page in PAGES if blocks(page)} == {
        "README.md": ["shop/views.py", "settings.py", "shop/members.py", "shop/api.py"],
        "docs/endpoints.md": ["shop/tests.py"],
        "docs/operations.md": ["shop/tasks.py"],
        "docs/options.md": ["settings.py"],
    }


def test_every_option_is_described():
    """A row of the first table for each option, and nothing that does not exist."""
    options, _ = (ROOT / "docs/options.md").read_text().split("## The `IDEMPOTENCY` setting")

    assert re.findall(r"(?m)^\| `(\w+)` \|", options) == list(OPTION_NAMES)


def test_every_setting_is_described():
    """Each option in upper case in the sentence, each other setting in a row of the table."""
    _, text = (ROOT / "docs/options.md").read_text().split("## The `IDEMPOTENCY` setting")
    rows = re.findall(r"(?m)^\| `([A-Z_]+)` \|", text)
    sentence = re.findall(r"`([A-Z_]+)`", text.split("\n| Setting", 1)[0].split("project's default", 1)[1])

    assert [*rows, *sentence] == list(SETTING_NAMES)


@pytest.mark.parametrize("page", ["CHANGELOG.md", *PAGES])
def test_links_between_pages_lead_somewhere(page):
    """Relative links name a file that exists."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), target


def test_every_system_check_is_described():
    """Each id in checks.py has a row in operations.md, and the other way round."""
    source = (ROOT / "django_idempotency/checks.py").read_text()
    ids = set(re.findall(r'id="(django_idempotency\.\w+)"', source))

    assert set(re.findall(r"`(django_idempotency\.[EW]\d+)`", (ROOT / "docs/operations.md").read_text())) == ids
