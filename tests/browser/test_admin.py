"""What a person does in the admin, in a real Chromium, under a strict Content-Security-Policy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from django_idempotency.models import IdempotencyKey
from tests.admin_pages import make_key
from tests.browser.doubts import LIST_PAGE, fail_in_doubt
from tests.leased_urls import GATEWAY

WIDER = """[document.documentElement, ...document.querySelectorAll(".results")]
    .filter(box => box.scrollWidth > box.clientWidth + 1)
    .map(box => box.className + box.scrollWidth)"""
NOT_UNDERLINED = """[...document.querySelectorAll(
    "#result_list td a, #result_list th a, .idempotency-overview a, .idempotency-story p a, .readonly a"
)].filter(a => ![a, ...a.children].some(one => getComputedStyle(one).textDecorationLine == "underline"))
    .map(a => a.outerHTML)"""
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.admin_urls")]


def test_from_the_alert_to_the_solved_key(admin: Any, client: Any) -> None:
    """On call: the alert, the key, the derived key for the gateway's books, a wrong result, its correction, the end."""
    headers = fail_in_doubt(client)
    assert client.post("/pay/hold", headers=headers).status_code == 409
    make_key("other")

    admin.reload()
    assert "Look it up on the other side" in admin.inner_text(".idempotency-waiting li")
    admin.click(".idempotency-waiting a >> text=the oldest")
    admin.wait_for_selector(".idempotency-story")
    told = admin.inner_text(".idempotency-story")
    assert "? in doubt Attempt 1 ended without a final response." in told
    assert "It is refused with 409, and no call is repeated." in told
    assert admin.locator(".idempotency-decisions a").all_inner_texts() == [
        "Record an outcome",
        "Answer by hand",
        "Release for retry",
    ]
    admin.context.grant_permissions(["clipboard-read", "clipboard-write"])
    admin.click(".idempotency-copy")
    admin.wait_for_selector("text=Copied")
    assert admin.get_by_role("status").all_inner_texts()[:1] == ["Copied"]  # what a screen reader says
    assert admin.evaluate("navigator.clipboard.readText()") == GATEWAY.charges[0]

    record(admin, "not json", error="This is not JSON")
    record(admin, '{"value": {"charge": "ch_1"}}', error="This is the envelope")
    record(admin, '"ch_1"')
    assert client.post("/pay/hold", headers=headers).status_code == 500
    admin.reload()
    record(admin, '{"charge": "ch_1"}')
    told = admin.inner_text("#content-main")
    assert "ada corrected the result of “charge”" in told
    assert "T-7: seen in the gateway's books" in told

    answer = client.post("/pay/hold", headers=headers)
    assert (answer.status_code, answer.json()["charge"]) == (201, "ch_1")
    assert GATEWAY.calls == 1
    admin.reload()
    assert "✓ completed The operation finished with status 201." in admin.inner_text(".idempotency-story")
    admin.goto(LIST_PAGE)
    assert "Nothing needs attention" in admin.inner_text(".idempotency-overview")


def record(admin: Any, result: str, error: str = "") -> None:
    """Enter a result; confirm its preview, unless the form refuses it."""
    if admin.locator(".idempotency-decisions").count():
        admin.click("text=Record an outcome")
        admin.wait_for_selector("textarea[name=result]")
    admin.fill("[name=reason]", "T-7: seen in the gateway's books")
    admin.fill("textarea[name=result]", result)
    admin.click("input[value=Preview]")
    if error:
        admin.wait_for_selector(f".errorlist >> text={error}")
        return
    admin.wait_for_selector(".idempotency-preview")
    admin.click("input[value='Record an outcome']")
    admin.wait_for_selector(".messagelist .success")


def test_links_are_underlined_the_search_has_a_name_and_a_phone_reaches_the_filters(admin: Any) -> None:
    """More than colour tells a link from text. On a phone the filters stand below the keys."""
    key = make_key("8e03978e", status="failed")
    admin.set_viewport_size({"width": 390, "height": 800})
    for path in ("", f"{key.pk}/change/"):
        admin.goto(f"{LIST_PAGE}{path}")
        assert admin.evaluate(NOT_UNDERLINED) == []
    admin.goto(LIST_PAGE)
    admin.get_by_role("textbox", name="Search").fill("8e03978e")
    assert admin.evaluate("document.querySelector('#searchbar').getBoundingClientRect().width") > 200
    admin.get_by_role("link", name="Filter").click()
    assert admin.evaluate("document.querySelector('#changelist-filter').getBoundingClientRect().top") < 800


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_scrolls_sideways(admin: Any, client: Any, width: int) -> None:
    """At 1280 pixels with Django's sidebar open, and on a phone. `PICTURES=folder` keeps what a person looks at."""
    fail_in_doubt(client, key="8e03978e-40d5-43e8-bc93-6894a57f9324")
    long_ = {"operation": f"POST ^{'accounts/' * 4}(?P<pk>[0-9]+)/orders/$", "scope": "user:auth.User:1"}
    key = make_key("k" * 255, **long_, headers=f'[["Location","/{"orders/" * 9}"]]')
    admin.set_viewport_size({"width": width, "height": 900})
    doubt = IdempotencyKey.objects.get(status="failed").pk
    paths = ["", "?state=attention", f"{key.pk}/change/", f"{doubt}/change/"]
    paths += [f"{doubt}/{decision}/" for decision in ("record", "answer", "release")]
    for path in paths:
        admin.goto(f"{LIST_PAGE}{path}")
        assert admin.evaluate(WIDER) == [], path
    if folder := os.environ.get("PICTURES"):
        wide = {1280: 1400}.get(width, width)
        admin.set_viewport_size({"width": wide, "height": 900})
        for path in ("", *paths[1:2], *paths[3:]):
            admin.goto(f"{LIST_PAGE}{path}")
            name = re.sub(r"\W+", "-", f"page-{path.replace(str(doubt), 'key')}-{wide}")
            admin.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
