"""A task of django.tasks that does its work once for each order."""

from __future__ import annotations

from django.tasks import task

from django_idempotency import once
from tests.shopapp.models import Order


@task()
@once(scope="tasks", key=lambda order: order)
def place_order(order: str) -> int:
    return Order.objects.create(reference=order).pk
