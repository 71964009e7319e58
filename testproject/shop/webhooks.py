"""Webhooks: the sender sends an event again until the shop acknowledges it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from standardwebhooks import Webhook, WebhookVerificationError

from django_idempotency import OperationInProgress, PayloadMismatch, idempotent, run_once
from django_idempotency.keys import from_header
from shop.models import Order


def signed(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Check the signature first, so that a request without one claims no key."""

    @wraps(view)
    def checked(request: HttpRequest) -> HttpResponse:
        try:
            Webhook(settings.WEBHOOK_SECRET).verify(request.body, dict(request.headers), json_parse=False)
        except (WebhookVerificationError, ValueError):
            return JsonResponse({"error": "the signature is not valid"}, status=401)
        return view(request)

    return checked


def handle(event: dict[str, Any]) -> dict[str, int]:
    return {"order": Order.objects.create(item=event["item"]).pk}


@csrf_exempt
@require_POST
@signed
def receive(request: HttpRequest) -> HttpResponse:
    """POST /webhooks/: a redelivery is acknowledged and creates nothing."""
    event = json.loads(request.body)
    work = partial(handle, event)
    key = request.headers["webhook-id"]
    try:
        result = run_once(work, operation="webhook", scope="provider", key=key, payload=event)
    except OperationInProgress as error:
        headers = {"Retry-After": str(error.retry_after)}
        return JsonResponse({"error": "the event is being handled, send it again later"}, status=503, headers=headers)
    except PayloadMismatch as error:
        return JsonResponse({"error": str(error)}, status=422)
    return JsonResponse({**result.value, "replayed": result.replayed})


@csrf_exempt
@require_POST
@signed
@idempotent(key=from_header("webhook-id"), scope=lambda request: "provider")
def receive_decorated(request: HttpRequest) -> HttpResponse:
    """POST /webhooks/decorated/: the same by the decorator."""
    return JsonResponse(handle(json.loads(request.body)))
