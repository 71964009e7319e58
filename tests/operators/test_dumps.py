"""Keys that Django's own `dumpdata` and `loaddata` carry to another database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_idempotency import get_operation, idempotent
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.shopapp.models import Order

CHARGED: list[str] = []


@idempotent
def order(request: HttpRequest) -> HttpResponse:
    placed = Order.objects.create(reference="a")
    body = b"\x00\xff <\r\n&\xed\xa0\x80" + str(placed.pk).encode()
    return HttpResponse(body, status=201, content_type="application/x-bytes", headers={"X-Text": 'a <b> & "c"'})


@idempotent(lease=60)
def charge_and_order(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    charge = operation.call("charge", lambda: CHARGED.append("charge") or {"id": "ch_1", "text": "a\x00 <b>"})
    if "X-Fail" in request.headers:
        return HttpResponse(status=503)
    return HttpResponse(charge["text"] + str(operation.write("order", Order.objects.create).pk))


urlpatterns = [path("order", order), path("pay", charge_and_order)]


@pytest.mark.urls(__name__)
@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["json", "jsonl", "xml"])
def test_a_dump_keeps_responses_and_steps(kind: str, tmp_path: Path, client: Client, monkeypatch: Any) -> None:
    """After `loaddata`, a retry gets the same bytes, and a payment that failed goes on without a second charge."""
    monkeypatch.setattr(f"{__name__}.CHARGED", [])
    key = {"Idempotency-Key": "one"}
    first = client.post("/order", headers=key)
    assert client.post("/pay", headers={**key, "X-Fail": "1"}).status_code == 503
    dump = str(tmp_path / f"keys.{kind}")
    call_command("dumpdata", "django_idempotency", format=kind, output=dump, verbosity=0)
    IdempotencyStep.objects.all().delete()
    IdempotencyKey.objects.all().delete()
    call_command("loaddata", dump, verbosity=0)
    again = client.post("/order", headers=key)
    assert (first["Idempotency-Replayed"], again["Idempotency-Replayed"]) == ("false", "true")
    kept = [(name, value) for name, value in first.items() if name != "Idempotency-Replayed"]
    assert (again.status_code, again.content) == (201, first.content)
    assert [(name, value) for name, value in again.items() if name != "Idempotency-Replayed"] == kept
    assert client.post("/pay", headers=key).status_code == 200
    assert (CHARGED, Order.objects.count()) == (["charge"], 2)
