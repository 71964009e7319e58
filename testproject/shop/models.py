from __future__ import annotations

from django.conf import settings
from django.db import models

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
    charge_id = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.amount} for {self.order}"
