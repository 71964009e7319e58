"""The list of keys: never a query over the whole table."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Max, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import IdempotencyKey
from . import limits
from .badges import ATTENTION, attention_ids, mark
from .overview import Overview, overview

if TYPE_CHECKING:
    _Paginator = Paginator[IdempotencyKey]
else:  # Django's class takes no parameters when it runs
    _Paginator = Paginator


class BoundedPaginator(_Paginator):
    """Counts up to a limit: the changelist asks its paginator, and count(*) reads the whole table."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.values("pk")[: limits.LISTED].count())


class NewestFirst(ChangeList):
    """Keeps the order of the primary key: `?o=` in the address would sort the whole table."""

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return ["-pk"]

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        mark(self.result_list, self.root_queryset.db)
        self.is_plain = not request.GET

    @cached_property
    def overview(self) -> Overview | None:
        """Above the plain list only: a search, a filter or another page does not wait for the overview."""
        return overview(self.root_queryset) if self.is_plain else None


class LatestFilter(admin.SimpleListFilter):
    """A filter over the latest keys only."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[IdempotencyKey]) -> QuerySet[IdempotencyKey]:
        if self.value() is None:
            return queryset
        newest = IdempotencyKey.objects.using(queryset.db).aggregate(newest=Max("pk"))["newest"] or 0
        return queryset.filter(pk__gt=newest - limits.FILTERED, **self.condition(str(self.value())))

    def condition(self, value: str) -> dict[str, Any]:
        raise NotImplementedError


class StatusFilter(LatestFilter):
    title = _("status (latest 100,000)")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return IdempotencyKey.Status.choices

    def condition(self, value: str) -> dict[str, Any]:
        return {"status": value}


class ResponseFilter(LatestFilter):
    title = _("response (latest 100,000)")
    parameter_name = "response"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("2", "2xx"), ("3", "3xx"), ("4", "4xx")]

    def condition(self, value: str) -> dict[str, Any]:
        first = int(value) * 100 if value in ("2", "3", "4") else 0
        return {"status_code__range": (first, first + 99)}


class AttentionFilter(admin.SimpleListFilter):
    """Keys with a lease or a call in doubt. They are few, and partial indexes find them, however old they are."""

    title = _("attention")
    parameter_name = "attention"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [
            ("stuck", _("Stuck: the lease is over")),
            ("in_doubt", _("In doubt: a call without a result")),
            ("in_flight", _("In flight: a worker holds the lease")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[IdempotencyKey]) -> QuerySet[IdempotencyKey]:
        name = self.value()
        return queryset.filter(pk__in=attention_ids(name, queryset.db)) if name in ATTENTION else queryset
