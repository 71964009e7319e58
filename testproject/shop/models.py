from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.urls import reverse

PRINTABLE = r"^[!-~]([ -~]*[!-~])?$"
"""ASCII without spaces at the ends, so that the OpenAPI schema can describe an item exactly."""


class Order(models.Model):
    customer = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT)
    item = models.CharField(max_length=100)
    quantity = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.quantity} x {self.item}"


class Payment(models.Model):
    order = models.ForeignKey(Order, on_delete=models.PROTECT)
    amount = models.PositiveIntegerField()
    charge_id = models.CharField(max_length=100, unique=True)  # one charge buys one order
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.amount} for {self.order}"


class Report(models.Model):
    """How many orders of an item there are. Counting takes long."""

    class Status(models.TextChoices):
        IN_PROGRESS = "in_progress", "in progress"
        COMPLETED = "completed", "completed"
        FAILED = "failed", "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    item = models.CharField(max_length=100)
    key = models.CharField(max_length=255)
    status = models.CharField(max_length=20, choices=Status, default=Status.IN_PROGRESS)
    orders = models.PositiveIntegerField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"report on {self.item}"

    def get_absolute_url(self) -> str:
        return reverse("report", args=[self.pk])
