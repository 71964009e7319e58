from __future__ import annotations

from django.db import models


class Order(models.Model):
    reference = models.CharField(max_length=100, blank=True)
    amount = models.IntegerField(default=0)

    def __str__(self) -> str:
        return self.reference


class Ledger(models.Model):
    """A row that may be there only once."""

    entry = models.CharField(max_length=100, unique=True)

    def __str__(self) -> str:
        return self.entry


class Line(models.Model):
    """Its foreign key is checked at COMMIT on PostgreSQL and SQLite."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)

    def __str__(self) -> str:
        return str(self.pk)
