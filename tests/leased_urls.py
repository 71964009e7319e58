"""Leased views, and a gateway in the same process that keeps its own books."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import include, path

from django_idempotency import Idempotency, get_operation, idempotent
from tests.leases import Broken, breaks
from tests.shopapp.models import Order

LEASE = timedelta(minutes=2)


class Gateway:
    """Charges, by idempotency key. `before` and `after` run around the charge: raise in them, or wait."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.charges: list[str] = []
        self.calls = 0
        self.before: Callable[[], Any] = lambda: None
        self.after: Callable[[], Any] = lambda: None
        self.result: Callable[[str], Any] = lambda key: {"charge": key}

    def charge(self, key: str) -> Any:
        self.calls += 1
        self.before()
        if key not in self.charges:
            self.charges.append(key)
        self.after()
        return self.result(key)


GATEWAY = Gateway()
HOOKS: dict[str, Callable[..., Any]] = {}


def leave_in_doubt(post: Callable[..., Any], path: str = "/pay/hold", **sent: Any) -> None:
    """A charge takes effect, and its answer is lost."""
    GATEWAY.after = breaks
    with pytest.raises(Broken):
        post(path, **sent)
    GATEWAY.after = lambda: None


def pay(request: HttpRequest) -> HttpResponse:
    """Charge, write, and whatever the test has hooked in between."""
    operation = get_operation(request)
    charge = operation.call("charge", GATEWAY.charge, operation.derive_key("charge"))
    HOOKS.get("between", lambda operation: None)(operation)
    order = operation.write("order", Order.objects.create, reference=charge["charge"])
    HOOKS.get("at the end", lambda operation: None)(operation)
    body = {"order": order.pk, "charge": charge["charge"], "attempt": operation.attempt}
    return JsonResponse(body, status=int(request.GET.get("status", 201)))


def hooked(request: HttpRequest) -> HttpResponse:
    """The view does what the test has put into `HOOKS`."""
    return JsonResponse({"result": HOOKS["view"](request)}, status=int(request.GET.get("status", 201)))


def reconciled(operation: Any) -> Any:
    return HOOKS["reconcile"](operation)


retry = Idempotency(lease=LEASE)
hold = Idempotency(lease=LEASE, on_abandoned="hold")
urlpatterns = [
    path("pay", idempotent(retry)(pay)),
    path("pay/hold", idempotent(hold)(pay)),
    path(
        "pay/reconcile",
        idempotent(operation="POST pay/reconcile", on_abandoned="hold", lease=LEASE, reconcile=reconciled)(pay),
    ),
    path("pay/reconcile-keyed", idempotent(operation="reconcile keyed", lease=LEASE, reconcile=reconciled)(pay)),
    path("pay/poll", idempotent(lease=LEASE, in_progress_status=202)(pay)),
    path("pay/wait", idempotent(lease=LEASE, wait=30)(pay)),
    path("pay/optional", idempotent(lease=LEASE, required=False)(pay)),
    path("hooked", idempotent(retry)(hooked)),
    path("hooked/hold", idempotent(hold)(hooked)),
    path("changed", idempotent(operation="changed", fingerprint=None, lease=LEASE)(hooked)),
    path("changed/atomic", idempotent(operation="changed", fingerprint=None)(hooked)),
    path("both", idempotent(operation="both", lease=LEASE)(hooked)),
    path("both/retry", idempotent(operation="both", lease=LEASE, on_abandoned="retry")(hooked)),
    path("both/hold", idempotent(operation="both", lease=LEASE, on_abandoned="hold")(hooked)),
    path("both/reconcile", idempotent(operation="both", lease=LEASE, reconcile=reconciled)(hooked)),
    path("status/", include("django_idempotency.urls")),
]
