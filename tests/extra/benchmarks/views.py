"""The view that is measured: a JSON body, one row by the ORM, a JSON answer. Bare, protected, and by hand."""

from __future__ import annotations

import json

from django.db import models, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse

from django_idempotency import get_operation, idempotent
from tests.shopapp.models import Order


class HandMadeKey(models.Model):
    """What a project would write itself."""

    key = models.CharField(max_length=255, unique=True)
    status = models.IntegerField(null=True)
    body = models.JSONField(null=True)

    class Meta:
        app_label = "benchmarks"

    def __str__(self) -> str:
        return self.key


def create(request: HttpRequest) -> HttpResponse:
    data = json.loads(request.body)
    order = Order.objects.create(reference=data["item"], amount=data["quantity"])
    return JsonResponse({"id": order.pk}, status=201)


def create_in_steps(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    data = json.loads(request.body)
    operation.call("charge", dict, id="ch_1")
    order = operation.write("order", Order.objects.create, reference=data["item"], amount=data["quantity"])
    return JsonResponse({"id": order.pk}, status=201)


def by_hand(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        row, created = HandMadeKey.objects.get_or_create(key=request.headers["Idempotency-Key"])
        if not created:
            return JsonResponse(row.body, status=row.status)
        response = create(request)
        row.status, row.body = response.status_code, json.loads(response.content)
        row.save()
        return response


def job() -> int:
    return int(Order.objects.create(reference="tea", amount=3).pk)


bare = transaction.atomic(create)
protected = idempotent(operation="create")(create)
leased = idempotent(operation="leased", lease=60)(create_in_steps)
