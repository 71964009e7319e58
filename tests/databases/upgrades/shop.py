"""What both releases serve. It uses only what 0.4.0 has, too, and stops, fails or dies where a header says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db.models import signals
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.views import APIView

from django_idempotency import get_operation, idempotent, problem_response, run_once
from django_idempotency.exceptions import NotRun
from django_idempotency.maintenance.resolution import record_outcome, release_for_retry
from django_idempotency.models import IdempotencyKey
from django_idempotency.rest_framework import IdempotencyMixin
from tests.servers import http_get, http_post
from tests.shopapp.models import Order

LEASE = 3600
SURE = ("--finished-calls-are-settled", "--by", "Ada", "--reason", "she has looked", "--apply")


class Failed(Exception):
    """What a header asked for."""


def post_charge(name: str, reference: str, key: str = "") -> Any:
    charge = {"amount": 1, "reference": f"{name} {reference}"}
    answer = http_post(f"{os.environ['GATEWAY']}/charges", json=charge, headers={"Idempotency-Key": key} if key else {})
    return answer.raise_for_status().json()["id"]


def place(request: Any, name: str) -> None:
    """Here the process dies, the view fails, or it waits for the test, if the request says so."""
    if request.headers.get("X-Die") == name:
        os.kill(os.getpid(), signal.SIGKILL)
    if request.headers.get("X-Fail") == name:
        raise Failed(name)
    if request.headers.get("X-Pause") == name:
        here = Path(os.environ["SHOP_FOLDER"], request.headers["X-Reference"])
        here.touch()
        while here.exists():
            time.sleep(0.01)  # between two looks


def ordered(request: Any) -> Order:
    order = Order.objects.create(reference=request.headers["X-Reference"])
    place(request, "after the order")
    return order


def atomic(request: Any) -> HttpResponse:
    return JsonResponse({"id": ordered(request).pk, "text": "ü €"}, status=201)


def steps(request: Any, operation: Any, *, keyed: bool) -> dict[str, Any]:
    """A charge, an order, and a mail."""
    reference = request.headers["X-Reference"]

    def charge() -> Any:
        place(request, "before the gateway")
        charged = post_charge("charge", reference, key)
        place(request, "in the charge")
        return charged

    place(request, "before the charge")
    key = operation.derive_key("charge") if keyed else ""
    charged = operation.call("charge", charge)
    place(request, "after the charge")
    order = operation.write("order", ordered, request)
    place(request, "before the mail")
    key = operation.derive_key("mail") if keyed else ""
    mailed = operation.call("mail", lambda: post_charge("mail", reference, key))
    return {"id": order.pk, "charge": charged, "mail": mailed}


def keyed(request: HttpRequest) -> HttpResponse:
    return JsonResponse(steps(request, get_operation(request), keyed=True), status=201)


def without_keys(request: HttpRequest) -> HttpResponse:
    return JsonResponse(steps(request, get_operation(request), keyed=False), status=201)


def found(name: str, reference: str) -> Any:
    charges = http_get(f"{os.environ['GATEWAY']}/charges", params={"reference": f"{name} {reference}"}).json()
    return charges["charges"][0]["id"] if charges["charges"] else None


def look_up(operation: Any) -> HttpResponse:
    """What `reconcile` says: not charged, so it is over; or charged, and the rest is made up for."""
    if (charge := operation.results.get("charge") or found("charge", operation.key)) is None:
        return JsonResponse({"charge": None}, status=402)
    operation.call("charge", lambda: charge)
    order = operation.write("order", Order.objects.create, reference=operation.key)
    mail = operation.call("mail", lambda: found("mail", operation.key) or post_charge("mail", operation.key))
    return JsonResponse({"id": order.pk, "charge": charge, "mail": mail}, status=201)


def job(request: HttpRequest, kind: str) -> HttpResponse:
    """What a consumer does, with the key of a message."""
    about: Any = {"scope": "queue", "key": request.headers["Idempotency-Key"], "payload": json.loads(request.body)}
    try:
        if kind == "atomic":
            result = run_once(lambda: ordered(request).pk, operation="job", **about)
        else:
            work = lambda operation: steps(request, operation, keyed=True)  # noqa: E731
            result = run_once(work, operation="leased job", lease=LEASE, **about)
    except NotRun as error:
        return problem_response(request, error)
    answer = JsonResponse({"value": result.value}, status=201)
    answer.headers["Idempotency-Replayed"] = str(result.replayed).lower()
    return answer


def decide(request: HttpRequest) -> HttpResponse:
    """What a person does in the admin."""
    row = IdempotencyKey.objects.get(key=request.headers["Idempotency-Key"])
    match request.headers["X-Decision"]:
        case "record":
            record_outcome(row, "charge", found("charge", row.key))
        case "release":
            release_for_retry(row)
        case "close":
            call_command("resolve_idempotency_keys", "--id", str(row.pk), "--close", "402", *SURE)
    return HttpResponse(status=204)


class Rest(IdempotencyMixin, APIView):
    authentication_classes = ()

    def post(self, request: Any) -> HttpResponse:
        return atomic(request)


def protected(view: Any, **options: Any) -> Any:
    return csrf_exempt(idempotent(**options)(view))


urlpatterns = [
    path("plain", protected(atomic)),
    path("rest", Rest.as_view()),
    path("tombstone", protected(atomic, store_body=False)),
    path("long", protected(atomic, max_body_bytes=5)),
    path("named", protected(atomic, operation="orders", fingerprint=("a",))),
    path("keyed", protected(keyed, lease=LEASE)),
    path("repeated", protected(keyed, lease=LEASE, on_abandoned="retry")),
    path("held", protected(without_keys, lease=LEASE, on_abandoned="hold")),
    path("unkeyed", protected(without_keys, lease=LEASE)),
    path("accepted", protected(keyed, lease=LEASE, in_progress_status=202)),
    path("settled", protected(without_keys, operation="settled", lease=LEASE, on_abandoned="hold", reconcile=look_up)),
    path("jobs/<kind>", csrf_exempt(job)),
    path("status/", include("django_idempotency.urls")),
    path("decide", csrf_exempt(decide)),
]


def die(**event: Any) -> None:
    """The end of `migrate`, at the moment that the environment names."""
    os.kill(os.getpid(), signal.SIGKILL)


if sys.argv[1:2] == ["migrate"] and (moment := os.environ.get("DIE_AT")):
    getattr(signals, moment).connect(die, weak=False)
