from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from django_idempotency import OperationInProgress
from shop.models import Report
from shop.reports import make_report


class Command(BaseCommand):
    help = "Make the reports that are not made yet. On cron too: a task may have died."

    def handle(self, **options: Any) -> None:
        for report in Report.objects.filter(status=Report.Status.IN_PROGRESS).order_by("created_at"):
            try:
                make_report(report)
            except OperationInProgress:
                continue  # another process makes this report
