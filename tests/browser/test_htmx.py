"""The forms of docs/views.md with real htmx, of both major versions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_idempotency.models import IdempotencyKey
from tests.browser import chromium
from tests.shopapp.models import Order

pytest.importorskip("django_htmx")
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.browser.htmx_urls")]
KEY = "[name=idempotency_key]"
EMPTIED = "field => { field.required = false; field.value = '' }"


@pytest.fixture(params=["2", "4"])
def form(request: Any, page: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Open a page with htmx of this version."""
    from tests.browser.htmx_urls import TEMPLATES

    monkeypatch.setattr(chromium, "POLICY", f"{chromium.POLICY}; connect-src 'self'")
    loaders = [("django.template.loaders.locmem.Loader", TEMPLATES), "django.template.loaders.app_directories.Loader"]
    options = {"loaders": loaders, "context_processors": ["django.template.context_processors.request"]}
    settings.TEMPLATES = [{"BACKEND": settings.TEMPLATES[0]["BACKEND"], "OPTIONS": options}]

    def open_(path: str) -> Any:
        page.set_default_timeout(10_000)
        page.goto(f"{path}?htmx={request.param}")
        return page

    return open_


def send(page: Any, amount: str) -> str:
    """Order so much, or with an empty field that htmx does not refuse itself. Return the key that was sent."""
    page.eval_on_selector("[name=amount]", EMPTIED)
    page.fill("[name=amount]", amount)
    key: str = page.input_value(KEY)
    page.click("button")
    return key


def orders() -> list[int]:
    return list(Order.objects.order_by("pk").values_list("amount", flat=True))


def test_a_corrected_form_orders(form: Any) -> None:
    """With its old key, where only the fields are swapped. Where the whole form is, the next order has a new key."""
    page = form("/part")
    keys = [send(page, "")]
    page.wait_for_selector(".errorlist")
    keys.append(send(page, "1"))
    page.wait_for_selector(".placed", state="attached")
    assert (orders(), len(set(keys))) == ([1], 1)

    page = form("/whole")
    keys = [send(page, "")]
    page.wait_for_selector(".errorlist")
    for amount in ("2", "3"):
        keys.append(send(page, amount))
        page.wait_for_function("key => document.querySelector('[name=idempotency_key]').value != key", arg=keys[-1])
        page.wait_for_selector(".placed")
    assert (orders(), len(set(keys))) == ([1, 2, 3], 3)


def test_a_conflict_is_a_fragment_that_checks_again(form: Any, errors: list[str]) -> None:
    """The same form goes out again, with its key. A button without a form sends the header again."""
    keys, soon = IdempotencyKey.objects.all(), timezone.now() + timedelta(hours=1)
    for path, count in (("/whole", 1), ("/button", 2)):
        page = form(path)
        markup = page.inner_html("body")
        page.click("button")
        page.wait_for_selector(".placed")
        keys.update(status="in_progress", locked_until=soon)
        page.evaluate("markup => { document.body.innerHTML = markup; htmx.process(document.body) }", markup)
        page.click("button")
        page.wait_for_selector("h1:text('We are still working on your request')")
        keys.update(status="completed", locked_until=None)
        page.click("button")
        page.wait_for_selector(".placed")
        assert page.locator("h1").count() == 0
        assert Order.objects.count() == count
    assert [text for text in errors if "409" not in text] == []
    errors.clear()  # Chromium reports the 409
