"""The admin in Django's own theme and in two that replace its templates and styles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from django_idempotency.models import IdempotencyKey
from tests.browser.doubts import LIST_PAGE, fail_in_doubt

RED, WHITE = "rgb(179, 38, 30)", "rgb(255, 255, 255)"
COLOURS = "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color]"
APART = """() => [...document.querySelectorAll(".idempotency-copy")].filter(button => {
    const own = button.getBoundingClientRect()
    return [...button.previousElementSibling.getClientRects()].some(
        line => own.left < line.right - 1 && line.left < own.right - 1
            && own.top < line.bottom - 1 && line.top < own.bottom - 1
    )
}).length"""
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.browser.theme_urls")]


@pytest.fixture(params=["django", "grappelli", "jazzmin"])
def themed(request: Any, browser: Any, settings: Any, transactional_db: None, admin_client: Client) -> Iterator[Any]:
    """A page behind the login. The themes' own pages have scripts in them, so the server has no strict policy."""
    theme = request.param
    if theme != "django":
        pytest.importorskip(theme, reason=f"django-{theme} is in the dependency group `browser`")
        ours, *others = settings.INSTALLED_APPS
        settings.INSTALLED_APPS = [ours, theme, *others]
    server = LiveServer("localhost")
    page = browser.new_page(base_url=server.url)
    session = {"name": "sessionid", "value": admin_client.cookies["sessionid"].value, "url": server.url}
    page.context.add_cookies([session])
    yield page
    page.close()
    server.stop()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_release_looks_dangerous_and_each_heading_has_its_badge(themed: Any, client: Any, width: int) -> None:
    """In each theme, with the path that the theme's pages have, and nothing above something else."""
    fail_in_doubt(client)
    key = IdempotencyKey.objects.get()
    themed.set_viewport_size({"width": width, "height": 900})
    assert themed.goto("/admin/").status == 200
    assert "The outcome of 1 request has been unknown" in themed.inner_text(".idempotency-note")
    assert themed.goto(LIST_PAGE).status == 200
    assert "Needs attention: 1" in themed.inner_text(".idempotency-overview h2")

    assert themed.goto(f"{LIST_PAGE}{key.pk}/change/").status == 200
    path = themed.inner_text("text=Home >> xpath=ancestor::*[self::ol or self::ul or self::div][1]")
    assert "Idempotency keys" in path
    assert themed.inner_text(".idempotency-story h2 .idempotency-badge") == "? in doubt"
    assert themed.eval_on_selector(".idempotency-decisions .idempotency-danger", COLOURS) == [RED, WHITE]
    assert themed.evaluate(APART) == 0

    themed.click("text=Release for retry")
    themed.wait_for_selector("[name=reason]")
    assert "Release for retry" in themed.inner_text("h1 >> nth=-1")
    assert themed.inner_text(".idempotency-story h2 .idempotency-badge") == "? in doubt"
    assert themed.eval_on_selector("input[type=submit].idempotency-danger", COLOURS) == [RED, WHITE]
    assert themed.evaluate(APART) == 0
    themed.fill("[name=reason]", "T-1")
    themed.check("[name=confirmed]")
    themed.click("input[type=submit].idempotency-danger")
    themed.wait_for_selector("text=Released for retry. Keys: 1.")
