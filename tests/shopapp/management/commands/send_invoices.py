from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_idempotency import OperationInProgress, run_once
from tests.shopapp.models import Order


class Command(BaseCommand):
    """For cron: once for each day, however often it is started."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("day")

    def handle(self, *args: Any, **options: Any) -> None:
        day = options["day"]
        try:
            result = run_once(self.send, operation="send_invoices", scope="cron", key=day)
        except OperationInProgress:
            self.stdout.write("already running")
        else:
            self.stdout.write("sent before" if result.replayed else f"sent {result.value}")

    def send(self) -> int:
        Order.objects.create(reference="invoice")
        return 1
