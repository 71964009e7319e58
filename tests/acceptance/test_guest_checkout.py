"""docs/recipes.md: a checkout that creates an account and logs in, double-clicked with the cookies of the form."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from http.cookies import SimpleCookie
from typing import Any

import pytest
from django.contrib.auth import get_user_model, login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.middleware.csrf import get_token
from django.test import Client
from django.urls import path

from django_idempotency import idempotent
from django_idempotency.keys import from_form_field
from tests.shopapp.models import Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
User = get_user_model()
FORM = {"email": "ann@shop.example", "password": "correct horse", "amount": 5, "idempotency_key": "one"}
Double = Callable[..., list[Any]]


def form(request: HttpRequest) -> HttpResponse:
    request.session["cart"] = "a book"
    return HttpResponse(get_token(request))


def me(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"user": request.user.get_username(), "cart": request.session.get("cart")})


@idempotent(key=from_form_field(), wait=5)
def logs_in(request: HttpRequest) -> HttpResponse:
    """As one writes it first."""
    customer = User.objects.create_user(request.POST["email"])
    Order.objects.create(reference=customer.get_username())
    login(request, customer, backend="django.contrib.auth.backends.ModelBackend")
    return HttpResponseRedirect("/thanks/")


class Clicks:
    """A browser's clicks on one form, each with the cookies of the form's page."""

    def __init__(self) -> None:
        self.page = Client()
        self.token = self.page.get("/form/").content.decode()

    def __call__(self) -> tuple[Any, dict[str, Any]]:
        """The response to a click, and who the browser is afterwards if it keeps the cookies of that one."""
        browser = Client(enforce_csrf_checks=True)
        browser.cookies = SimpleCookie({name: morsel.value for name, morsel in self.page.cookies.items()})
        response = browser.post("/check-out/", {**FORM, "csrfmiddlewaretoken": self.token})
        return response, browser.get("/me/").json()


@pytest.fixture
def clicks(serve: Any) -> Callable[[Any], Clicks]:
    def serving(view: Any) -> Clicks:
        serve(path("form/", form), path("me/", me), path("check-out/", view))
        return Clicks()

    return serving


def test_a_login_in_the_protected_view_leaves_the_second_click_a_guest(clicks: Any) -> None:
    """Its replay carries no cookie, and the guest's session is gone."""
    click = clicks(logs_in)
    first, second = click(), click()
    assert (first[0].status_code, first[1]) == (302, {"user": "ann@shop.example", "cart": "a book"})
    assert (second[0].status_code, second[0]["Idempotency-Replayed"]) == (302, "true")
    assert second[1] == {"user": "", "cart": None}


@pytest.mark.parametrize("at_once", [True, False])
def test_each_click_of_the_recipe_ends_logged_in(run: Any, clicks: Any, in_threads: Any, at_once: bool) -> None:
    """With one account and one order. Nobody sees the header that names the customer."""
    click = clicks(run("docs/recipes.md", "shop/guest_checkout.py").check_out)
    done = in_threads(2, lambda number: click()) if at_once else [click(), click()]
    assert [response.status_code for response, _ in done] == [302, 302]
    assert sorted(response["Idempotency-Replayed"] for response, _ in done) == ["false", "true"]
    assert [who["user"] for _, who in done] == ["ann@shop.example"] * 2
    assert (User.objects.count(), Order.objects.count()) == (1, 1)
    assert not [response for response, _ in done if "X-Customer" in response]


def test_an_old_request_logs_nobody_in(run: Any, clicks: Any) -> None:
    """A replay checks no password."""
    click = clicks(run("docs/recipes.md", "shop/guest_checkout.py").check_out)
    click()
    User.objects.update(date_joined=User.objects.get().date_joined - timedelta(minutes=6))
    response, who = click()
    assert (response.status_code, response["Idempotency-Replayed"]) == (302, "true")
    assert (who["user"], "X-Customer" in response) == ("", False)


def test_a_known_customer_is_asked_to_log_in(run: Any, clicks: Any) -> None:
    """Nothing is stored, and nobody is logged in."""
    User.objects.create_user("ann@shop.example")
    click = clicks(run("docs/recipes.md", "shop/guest_checkout.py").check_out)
    for response, who in (click(), click()):
        assert (response.status_code, response["Idempotency-Replayed"], who["user"]) == (409, "false", "")
    assert Order.objects.count() == 0
