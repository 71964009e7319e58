"""dj-stripe's webhook, and what the shop does when a payment has arrived: the recipe of docs/events.md."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.dispatch import receiver
from django.urls import include, path
from djstripe.event_handlers import djstripe_receiver
from djstripe.models import WebhookEventTrigger
from djstripe.signals import webhook_post_process

from django_idempotency import run_once
from tests.shopapp.models import Ledger, Order


@receiver(webhook_post_process, sender=WebhookEventTrigger)
def paid(instance: WebhookEventTrigger, **_: Any) -> None:
    """dj-stripe sends this signal with each delivery of an event."""
    event = instance.event

    def work() -> int:
        return Order.objects.create(reference=event.id, amount=event.data["object"]["amount"]).pk

    if settings.PROTECTED:
        run_once(work, operation="paid", scope="stripe", key=event.id, wait=timedelta(seconds=5))
    else:
        work()


@djstripe_receiver("payment_intent.succeeded")
def in_the_event(event: Any, **_: Any) -> None:
    """dj-stripe itself runs this once for each event, in the transaction that saves the event."""
    Ledger.objects.create(entry=event.id)


urlpatterns = [path("stripe/", include("djstripe.urls", namespace="djstripe"))]
