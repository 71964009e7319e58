from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from pytest_django.live_server_helper import LiveServer

from tests.browser.chromium import CHROMIUM, FLAGS

REPORT = """document.addEventListener(
    "securitypolicyviolation", event => console.error(`${event.violatedDirective}: ${event.blockedURI}`)
)"""


@pytest.fixture
def strict_server(settings: Any, transactional_db: None) -> Iterator[str]:
    """Its address. Every answer has the strict policy: it is a server of its own, with this test's settings."""
    settings.MIDDLEWARE = ["tests.browser.chromium.content_security_policy", *settings.MIDDLEWARE]
    server = LiveServer("localhost")
    yield server.url
    server.stop()


@pytest.fixture
def errors() -> list[str]:
    """What the page reports: errors of scripts, in the console, and violations of the policy."""
    return []


def is_error(message: Any) -> bool:
    return message.type == "error" and not message.location["url"].endswith("/favicon.ico")  # there is none


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for the tests of one file."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    with pytest.MonkeyPatch.context() as environment, sync_api.sync_playwright() as playwright:
        # Playwright's synchronous interface keeps an event loop in this thread, which Django mistakes for async code.
        environment.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()
        connections.close_all()  # the ones of that event loop's context, which nobody else would close


@pytest.fixture
def page(browser: Any, strict_server: str, errors: list[str]) -> Iterator[Any]:
    """A page of the strict server, as of a new person. No test leaves an error behind that it has not expected."""
    page = browser.new_page(base_url=strict_server)
    page.add_init_script(REPORT)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if is_error(message) else None)
    yield page
    page.close()
    assert errors == []


@pytest.fixture
def admin(page: Any) -> Any:
    """The page, behind the login, on the list of keys."""
    User.objects.create_superuser("ada", password="lovelace")
    page.goto("/admin/django_idempotency/idempotencykey/")
    page.fill("#id_username", "ada")
    page.fill("#id_password", "lovelace")
    page.click("input[type=submit]")
    page.wait_for_selector("#changelist")
    return page
