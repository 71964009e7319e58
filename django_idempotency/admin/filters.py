"""The filters beside the list. The list keeps them within the latest keys, or within the keys of a state."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Max, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..models import IdempotencyKey
from . import limits
from .attention import BY_INDEX
from .badges import BADGES
from .texts import readable_operation

Keys = QuerySet[IdempotencyKey]
Status = IdempotencyKey.Status


def latest(keys: Keys, count: int) -> Keys:
    """Return those of the latest keys of the table that are among `keys`: a range of the primary key."""
    newest = IdempotencyKey.objects.using(keys.db).aggregate(newest=Max("pk"))["newest"] or 0
    return keys.filter(pk__gt=newest - count)


class StateFilter(admin.SimpleListFilter):
    """By state. The list looks the keys up after all other filters: see `listing`."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("attention", _("needs attention")), *((name, label) for name, (_shape, label) in BADGES.items())]

    def queryset(self, request: HttpRequest, queryset: Keys) -> Keys:
        if self.value() is None or self.value() in BY_INDEX:
            return queryset  # found later
        return queryset.filter(status=self.value()) if self.value() in Status.values else queryset.none()


class OperationFilter(admin.SimpleListFilter):
    """By operation. It offers those of the keys that the list pages through."""

    title = _("operation")
    parameter_name = "operation"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        recent = latest(model_admin.get_queryset(request), limits.LISTED).order_by()
        found = set(recent.values_list("operation", flat=True).distinct())
        if (chosen := request.GET.get(self.parameter_name)) is not None:
            found.add(chosen)
        return [(operation, readable_operation(operation)) for operation in sorted(found)]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: Keys) -> Keys:
        operation = self.value()
        if operation is None:
            return queryset
        # PostgreSQL refuses to look for NUL.
        return queryset.none() if "\0" in operation else queryset.filter(operation=operation)


class DateFilter(admin.SimpleListFilter):
    """By the time of the claim."""

    title = _("date")
    parameter_name = "date"
    HOURS = {"1h": 1, "24h": 24, "7d": 7 * 24}

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("1h", _("last hour")), ("24h", _("last 24 hours")), ("7d", _("last 7 days"))]

    def queryset(self, request: HttpRequest, queryset: Keys) -> Keys:
        hours = self.HOURS.get(self.value() or "")
        return queryset if hours is None else queryset.filter(created_at__gte=timezone.now() - timedelta(hours=hours))


class ResponseFilter(admin.SimpleListFilter):
    """By the first digit of the status code."""

    title = _("response")
    parameter_name = "response"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("2", "2xx"), ("3", "3xx"), ("4", "4xx")]

    def queryset(self, request: HttpRequest, queryset: Keys) -> Keys:
        first = {"2": 200, "3": 300, "4": 400}.get(self.value() or "")
        return queryset if first is None else queryset.filter(status_code__range=(first, first + 99))
