"""A visitor without an account and without a session, who clicks twice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template import engines
from django.urls import path
from django.utils import timezone

from django_idempotency import idempotent
from django_idempotency.keys import from_form_field
from django_idempotency.models import IdempotencyKey
from tests.shopapp.models import Order
from tests.views import creates

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.browser.test_forms")]
FORM = """{% load idempotency %}<!doctype html><html lang="en"><title>Order</title>
<form method="post">{% csrf_token %}{% idempotency_key %}<button>Order</button></form>"""


def begins_sessions(get_response: Any) -> Any:
    """Each answer to a click begins the visitor's session, as a cart or a counter does; a 409 and a replay, too."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if request.method == "POST":
            request.session["clicks"] = request.session.get("clicks", 0) + 1
        return response

    return middleware


thanked = creates(then=lambda request, order: HttpResponseRedirect(f"/thanks/{order.pk}"))
impatient = idempotent(key=from_form_field())(thanked)
click = idempotent(key=from_form_field(), wait=20)(thanked)  # else the second of two fast clicks may show a 409


def order(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        return impatient(request) if "at-once" in request.GET else click(request)
    return HttpResponse(engines["django"].from_string(FORM).render({}, request))


def thanks(request: HttpRequest, number: int) -> HttpResponse:
    page = f'<!doctype html><html lang="en"><title>Thanks</title><p id="number">{number}</p>'
    clicks = f'<p id="clicks">{request.session.get("clicks")}</p>'
    return HttpResponse(page + clicks)


urlpatterns = [path("order", order), path("thanks/<int:number>", thanks)]


@pytest.fixture(autouse=True)
def sessions(settings: Any) -> None:
    """Of all requests in this file, also those of the page's server."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.browser.test_forms.begins_sessions"]


def cookies(page: Any) -> set[str]:
    return {cookie["name"] for cookie in page.context.cookies()}


def click_again(page: Any, key: str) -> None:
    """Go back to the form. The browser may have kept the page, or asked for a new one: the old key is sent again."""
    page.go_back()
    page.wait_for_selector("button")
    page.eval_on_selector("[name=idempotency_key]", "(field, key) => { field.value = key }", key)
    page.click("button")


def test_a_double_click_orders_once(page: Any) -> None:
    """The browser drops the first answer, and shows the second."""
    page.goto("/order")
    assert cookies(page) == {"csrftoken"}
    page.dblclick("button")
    page.wait_for_selector("#number")
    assert Order.objects.count() == 1
    assert int(page.inner_text("#number")) == Order.objects.get().pk


def test_a_click_after_going_back_orders_nothing_more(page: Any) -> None:
    """The first answer has begun a session, so this click comes with another cookie than the first."""
    page.goto("/order")
    key = page.input_value("[name=idempotency_key]")
    page.click("button")
    page.wait_for_selector("#number")
    assert cookies(page) == {"csrftoken", "sessionid"}
    click_again(page, key)
    page.wait_for_selector("#number")
    assert page.inner_text("#clicks") == "2"
    assert Order.objects.count() == 1
    assert int(page.inner_text("#number")) == Order.objects.get().pk


def test_the_page_of_a_conflict_sends_the_same_form_again(page: Any, errors: list[str]) -> None:
    """After a click whose request is still running, in another window for example."""
    page.goto("/order?at-once")
    key = page.input_value("[name=idempotency_key]")
    page.click("button")
    page.wait_for_selector("#number")
    number = page.inner_text("#number")
    keys, soon = IdempotencyKey.objects.all(), timezone.now() + timedelta(hours=1)
    keys.update(status="in_progress", locked_until=soon)

    click_again(page, key)

    page.wait_for_selector("h1:text('We are still working on your request')")
    assert page.evaluate("document.documentElement.lang") == "en-us"
    keys.update(status="completed", locked_until=None)
    page.click("button")
    page.wait_for_selector("#number")
    assert (page.inner_text("#number"), Order.objects.count()) == (number, 1)
    assert [text for text in errors if "409" not in text] == []
    errors.clear()  # Chromium reports the 409
