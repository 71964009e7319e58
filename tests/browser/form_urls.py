"""A form for visitors without an account, whose session begins with the answer to the first click."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template import engines
from django.urls import path

from django_idempotency import idempotent
from django_idempotency.keys import from_form_field
from tests.shopapp.models import Order

FORM = """{% load idempotency %}<!doctype html><html lang="en"><title>Order</title>
<form method="post">{% csrf_token %}{% idempotency_key %}<button>Order</button></form>"""


def sessions(get_response):
    """Each answer to a click begins the visitor's session, as a cart or a counter does; a 409 and a replay, too."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if request.method == "POST":
            request.session["clicks"] = request.session.get("clicks", 0) + 1
        return response

    return middleware


@idempotent(key=from_form_field(), wait=20)  # else the second of two fast clicks may show a 409
def click(request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect(f"/thanks/{Order.objects.create().pk}")


@idempotent(key=from_form_field())
def impatient(request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect(f"/thanks/{Order.objects.create().pk}")


def order(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        return impatient(request) if "at-once" in request.GET else click(request)
    return HttpResponse(engines["django"].from_string(FORM).render({}, request))


def thanks(request: HttpRequest, number: int) -> HttpResponse:
    page = f'<!doctype html><html lang="en"><title>Thanks</title><p id="number">{number}</p>'
    clicks = f'<p id="clicks">{request.session.get("clicks")}</p>'
    return HttpResponse(page + clicks)


urlpatterns = [path("order", order), path("thanks/<int:number>", thanks)]
