from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from oscar.apps.checkout.views import *  # noqa: F403
from oscar.apps.checkout.views import PaymentDetailsView as OscarsView
from oscar.core.loading import get_class, get_model

from django_idempotency import get_operation, idempotent
from django_idempotency.keys import from_form_field
from tests.extra.projects.faults import at
from tests.servers import http_post
from tests.shopapp.models import Ledger

Basket, Source, SourceType = (
    get_model("basket", "Basket"),
    get_model("payment", "Source"),
    get_model("payment", "SourceType"),
)
Applicator = get_class("offer.applicator", "Applicator")


class PaymentDetailsView(OscarsView):
    preview, by_card = True, False

    @property
    def in_steps(self) -> bool:
        return self.by_card and settings.PROTECTED

    def freeze_basket(self, basket: Any) -> None:
        if not self.in_steps:
            super().freeze_basket(basket)

    def submit(self, **submission: Any) -> HttpResponse:
        Ledger.objects.create(entry=f"checkout {uuid4()}")
        return super().submit(**submission)

    def handle_payment(self, order_number: int, total: Any, **kwargs: Any) -> None:
        reference = "invoice"
        if self.in_steps:
            operation = get_operation(self.request)
            key = operation.derive_key("charge")
            reference = operation.call("charge", charge, str(order_number), str(total.incl_tax), key)
        elif self.by_card:
            reference = charge(str(order_number), str(total.incl_tax))
        source_type, _ = SourceType.objects.get_or_create(name="card" if self.by_card else "invoice")
        self.add_payment_source(Source(source_type=source_type, amount_debited=total.incl_tax, reference=reference))

    def place_order(self, *args: Any, **kwargs: Any) -> Any:
        if not self.in_steps:
            return super().place_order(*args, **kwargs)
        return get_operation(self.request).write("order", super().place_order, *args, **kwargs)

    def handle_successful_order(self, order: Any) -> HttpResponse:
        """The session knows which order the page of thanks shows, and commits with the order."""
        response = super().handle_successful_order(order)
        self.request.session.save()
        return response


def charge(reference: str, amount: str, key: str | None = None) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    charged = http_post(f"{settings.GATEWAY}/charges", json={"amount": amount, "reference": reference}, headers=headers)
    at("the charge")
    return charged.raise_for_status().json()["id"]


confirm_invoice, confirm_card = PaymentDetailsView.as_view(), PaymentDetailsView.as_view(by_card=True)


def by_invoice(request: HttpRequest) -> HttpResponse:
    """Oscar's class asks "is the basket empty?" in its `dispatch`. So the decorator stands above the whole view."""
    return confirm_invoice(request)


def by_card(request: HttpRequest) -> HttpResponse:
    """Oscar freezes the basket before the charge, and shows an empty basket to the next request. So a retry gets the
    basket of the first request."""
    if request.method == "POST" and settings.PROTECTED:
        basket = get_operation(request).write("basket", freeze, request)
        if basket is not None:
            basket.strategy = request.strategy
            Applicator().apply(basket, request.user, request)
            request.basket = basket
    return confirm_card(request)


if settings.PROTECTED:
    by_invoice = idempotent(key=from_form_field(), wait=60)(by_invoice)
    by_card = idempotent(key=from_form_field(), wait=60, lease=15)(by_card)


def freeze(request: HttpRequest) -> Any:
    if request.basket.is_empty:
        return None
    request.basket.freeze()
    return Basket.objects.get(pk=request.basket.pk)
