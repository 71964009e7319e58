"""Long-running work: the answer is 202 with the address of a status page, and a task does the work once."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from uuid import UUID

from django import forms
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from django_idempotency import get_operation, idempotent, run_once
from shop.models import Order, Report


class ReportForm(forms.ModelForm):
    class Meta:
        model = Report
        fields = ["item"]


@csrf_exempt
@require_POST
@idempotent(operation="order a report", lease=settings.REPORT_LEASE, in_progress_status=202, on_abandoned="retry")
def order_report(request: HttpRequest) -> JsonResponse:
    """POST /reports/ {"item": "a book"}: 202 with the report's own page. A retry gets the same 202."""
    operation = get_operation(request)
    form = ReportForm(json.loads(request.body))
    if not form.is_valid():
        return JsonResponse(form.errors, status=400)
    item = form.cleaned_data["item"]
    report = operation.write("report", Report.objects.create, item=item, key=operation.key)
    # After the COMMIT of the report, and again in a retry if the worker dies here.
    operation.call("start", start_task)
    headers = {"Location": report.get_absolute_url(), "Retry-After": "1"}
    return JsonResponse({"status": report.status}, status=202, headers=headers)


def start_task() -> None:
    """A message to your queue, such as `make_report.delay(report.pk)`. Here: a process of its own."""
    subprocess.Popen([sys.executable, settings.BASE_DIR / "manage.py", "make_reports"], start_new_session=True)


def make_report(report: Report) -> None:
    """The task. Another delivery of its message changes nothing."""
    # The report is in the scope: another caller may have sent the same key.
    run_once(partial(count, report.pk), operation="make_report", scope=f"report:{report.pk}", key=report.key)


def count(pk: UUID) -> str:
    """Runs in the transaction of `run_once`: the report is made, and the task is done, or neither."""
    report = Report.objects.get(pk=pk)
    report.orders = Order.objects.filter(item=report.item).count()
    report.status = Report.Status.COMPLETED if report.orders else Report.Status.FAILED
    report.save()
    return report.status


@require_safe
@never_cache
def show_report(request: HttpRequest, pk: UUID) -> JsonResponse:
    """GET /reports/<pk>/: in_progress, completed or failed."""
    report = get_object_or_404(Report, pk=pk)
    in_progress = report.status == Report.Status.IN_PROGRESS
    headers = {"Retry-After": "1"} if in_progress else {}
    return JsonResponse({"status": report.status, "orders": report.orders}, headers=headers)
