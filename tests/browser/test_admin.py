"""What a person does in the admin, in a real Chromium, under a strict Content-Security-Policy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from django_idempotency.models import IdempotencyKey
from tests.admin_pages import make_key
from tests.browser.doubts import LIST_PAGE, fail_in_doubt
from tests.leased_urls import GATEWAY
from tests.step_rows import add_step

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
    assert "Look it up at the called service" in admin.inner_text(".idempotency-waiting li")
    admin.click(".idempotency-waiting a >> text=the oldest")
    admin.wait_for_selector(".idempotency-story")
    told = admin.inner_text(".idempotency-story")
    assert "? in doubt Attempt 1 ended without a final response." in told
    assert "It is refused with 409, and no call is repeated." in told
    assert admin.locator(".idempotency-decisions a").all_inner_texts() == [
        "Record an outcome",
        "Close with a response",
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


SMALL = """[...document.querySelectorAll(
    ".idempotency-overview a, .idempotency-story a, .idempotency-selected a, .idempotency-links a, "
    + ".idempotency-note a, .idempotency-copy, #result_list a, #result_list input, "
    + "#changelist-filter a, .breadcrumbs a, #toolbar a, .checkbox-row input"
)].map(one => [one, one.getBoundingClientRect()])
    .filter(([one, box]) => box.height && (box.height < 24 || box.width < 24))
    .map(([one, box]) => `${one.outerHTML} ${box.width} ${box.height}`)"""


def test_on_a_phone_fingers_hit_what_they_aim_at_and_no_cell_is_a_bare_dash(admin: Any, client: Any) -> None:
    """At least 24 pixels each way. A card shows only what there is."""
    fail_in_doubt(client)
    make_key("done", resource_type="order", resource_id="59")
    admin.set_viewport_size({"width": 390, "height": 800})
    doubt = IdempotencyKey.objects.get(status="failed").pk
    for path in ("../../", "", "?state=in_doubt", f"{doubt}/change/", f"{doubt}/release/"):
        admin.goto(f"{LIST_PAGE}{path}")
        assert admin.evaluate(SMALL) == [], path
    admin.goto(LIST_PAGE)
    cards = admin.locator("#result_list tbody tr").all_inner_texts()
    assert [[line.strip() for line in card.split("\n")].count("-") for card in cards] == [0, 0]
    assert "order 59" in cards[0]


def test_a_key_in_doubt_fits_one_window_with_its_customer_amount_and_decisions_on_top(admin: Any, client: Any) -> None:
    """Everything on the key's page stands in one window of a small laptop, below Django's header."""
    fail_in_doubt(client)
    doubt = IdempotencyKey.objects.get()
    result = '{"value": {"amount": 1999, "currency": "eur"}}'
    add_step(doubt, "basket", "write", finished_at=timezone.now(), result=result)
    admin.set_viewport_size({"width": 1280, "height": 720})
    admin.goto(f"{LIST_PAGE}{doubt.pk}/change/")
    assert "1999 eur" in admin.inner_text(".idempotency-story dl")
    bottom = admin.evaluate("document.querySelector('.idempotency-decisions').getBoundingClientRect().bottom")
    height = admin.evaluate("document.querySelector('#content').getBoundingClientRect().height")
    assert (bottom < 720, height < 720) == (True, True), (bottom, height)


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
