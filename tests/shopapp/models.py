from __future__ import annotations

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper


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


class Digest(models.BinaryField):
    """Bytes that can be a key: MySQL has no key of a BLOB."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        return "varbinary(32)" if connection.vendor == "mysql" else super().db_type(connection)


class File(models.Model):
    digest = Digest(primary_key=True)

    def __str__(self) -> str:
        return bytes(self.digest).hex()


class Thumbnail(models.Model):
    file = models.OneToOneField(File, on_delete=models.CASCADE, primary_key=True)

    def __str__(self) -> str:
        return str(self.file)


class Keyed(models.Model):
    """A column of each type, all of them in the primary key."""

    pk = models.CompositePrimaryKey("at", "day", "hour", "took", "price", "ratio", "uuid", "name", "number")
    at = models.DateTimeField()
    day = models.DateField()
    hour = models.TimeField()
    took = models.DurationField()
    price = models.DecimalField(max_digits=20, decimal_places=10)
    ratio = models.FloatField()
    uuid = models.UUIDField()
    name = models.CharField(max_length=50)
    number = models.BigIntegerField()

    def __str__(self) -> str:
        return str(self.pk)


class Outbox(models.Model):
    """An event that waits to be published."""

    payload = models.JSONField()

    class Meta:
        required_db_vendor = "postgresql"  # elsewhere Django 6.1 connects before each command, to look for JSON

    def __str__(self) -> str:
        return str(self.payload)


class Switch(models.Model):
    """What an operator switches without a deployment."""

    name = models.CharField(max_length=100)
    paused = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.name


class Purchase(models.Model):
    """It has a number of the customer's own."""

    customer = models.CharField(max_length=100)
    number = models.CharField(max_length=100)
    amount = models.IntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["customer", "number"], name="one_number_a_customer")]

    def __str__(self) -> str:
        return self.number
