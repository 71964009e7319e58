"""A charge, an order, a mail: a leased view that calls a gateway in another process, and its recovery."""

from __future__ import annotations

import os
from typing import Any

from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from django_idempotency import get_operation
from tests.server.boundaries import boundary
from tests.servers import http_get, http_post
from tests.shopapp.models import Order


def call_gateway(gateway: str, step: str, reference: str, key: str) -> Any:
    boundary()
    answer = http_post(
        f"{gateway}/charges",
        json={"amount": 1, "reference": f"{step} {reference}"},
        headers={"Idempotency-Key": key},
        timeout=30,
    )
    boundary()
    return answer.raise_for_status().json()["id"]


def three_steps(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    reference = request.headers["X-Reference"]
    gateway = os.environ["GATEWAY" if request.path == "/retry" else "OLD_GATEWAY"]
    charge = operation.call("charge", call_gateway, gateway, "charge", reference, operation.derive_key("charge"))
    order = operation.write("order", Order.objects.create, reference=reference)
    mail = operation.call("mail", call_gateway, gateway, "mail", reference, operation.derive_key("mail"))
    return JsonResponse({"id": order.pk, "charge": charge, "mail": mail}, status=201)


def found(gateway: str, reference: str) -> Any:
    """The charge in the gateway's books, or None."""
    charges = http_get(f"{gateway}/charges", params={"reference": reference}, timeout=30).json()["charges"]
    return charges[0]["id"] if charges else None


def settle(operation: Any) -> HttpResponse:
    """What the books of /settled say: not charged, so there is no order; or charged, and all else is made up for."""
    gateway, reference = os.environ["OLD_GATEWAY"], operation.key
    charge = operation.results.get("charge") or found(gateway, f"charge {reference}")
    if charge is None:
        return JsonResponse({"charge": None}, status=402)

    def mail() -> Any:
        sent = found(gateway, f"mail {reference}")
        return sent or call_gateway(gateway, "mail", reference, operation.derive_key("mail"))

    operation.call("charge", lambda: charge)
    order = operation.write("order", Order.objects.create, reference=reference)
    return JsonResponse({"id": order.pk, "charge": charge, "mail": operation.call("mail", mail)}, status=201)


@csrf_exempt
def recover(request: HttpRequest) -> HttpResponse:
    """The command, in a process that can be killed at any boundary."""
    try:
        call_command("recover_idempotency_keys", "--older-than=0", "--operation=POST settled")
    except CommandError as error:
        return JsonResponse({"status": error.returncode})
    return JsonResponse({"status": 0})
