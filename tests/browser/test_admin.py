"""The admin in a real Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections

from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.integration.test_admin import make_key
from tests.integration.test_leased import breaks

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)")
sync_api = pytest.importorskip("playwright.sync_api")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # Playwright's synchronous interface keeps an event loop in this thread, which Django mistakes for async code.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        yield page
        browser.close()
        connections.close_all()  # the ones of that event loop's context, which nobody else would close


@pytest.mark.django_db(transaction=True)
def test_a_person_finds_a_key_and_reads_its_response(page: Any, live_server: Any) -> None:
    """Log in, search for the key a customer names, open it, read the response; nothing in it runs."""
    User.objects.create_superuser("ada", password="lovelace")
    make_key("other")
    make_key("8e03978e", body=b'{"note":"<img src=x onerror=\\"document.title=1\\">","total":7}')
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{live_server.url}/admin/django_idempotency/idempotencykey/")
    page.fill("#id_username", "ada")
    page.fill("#id_password", "lovelace")
    page.click("input[type=submit]")
    page.wait_for_selector("#result_list")
    assert page.locator("#result_list tbody tr").count() == 2
    page.fill("#searchbar", '"8e03978e"')
    page.press("#searchbar", "Enter")
    page.wait_for_url("**q=**")
    assert page.locator("#result_list tbody tr").count() == 1
    page.click("#result_list a")
    page.wait_for_selector("pre")
    assert page.inner_text("pre") == ('{\n  "note": "<img src=x onerror=\\"document.title=1\\">",\n  "total": 7\n}')
    assert page.locator("pre img").count() == 0
    assert page.locator("input[name=_save]").count() == 0
    assert errors == []


@pytest.mark.urls("tests.integration.admin_urls")
@pytest.mark.django_db(transaction=True)
def test_a_person_records_the_outcome_of_a_call_in_doubt(page: Any, live_server: Any, client: Any) -> None:
    """From the filter to the key, paste the gateway's answer, confirm; the client's retry goes on from there."""
    User.objects.create_superuser("ada", password="lovelace")
    GATEWAY.reset()
    HOOKS.clear()
    GATEWAY.after = breaks
    client.raise_request_exception = False
    headers = {"Idempotency-Key": "8e03978e"}
    assert [client.post("/pay/hold", headers=headers).status_code for _ in range(2)] == [500, 409]
    make_key("other")

    page.goto(f"{live_server.url}/admin/django_idempotency/idempotencykey/")
    page.fill("#id_username", "ada")
    page.fill("#id_password", "lovelace")
    page.click("input[type=submit]")
    page.wait_for_selector("#result_list")
    page.click("text=In doubt: a call without a result")
    page.wait_for_url("**attention=in_doubt**")
    assert page.locator("#result_list tbody tr").count() == 1
    page.click("#result_list a")
    page.click("text=Record an outcome")
    page.fill("textarea[name=result]", "not json")
    page.click("input[type=submit]")
    page.wait_for_selector(".errorlist")
    page.fill("textarea[name=result]", '{"charge": "ch_1"}')
    page.click("input[value='Record an outcome']")
    page.wait_for_selector(".messagelist .success")
    assert "ch_1" in page.inner_text("#content-main")

    answer = client.post("/pay/hold", headers=headers)
    assert (answer.status_code, answer.json()["charge"]) == (201, "ch_1")
    assert GATEWAY.calls == 1
