"""The list of keys: never a query over the whole table."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.http import HttpRequest

from ..models import IdempotencyKey
from . import limits
from .attention import BY_INDEX, find
from .badges import ATTENTION, mark
from .filters import StateFilter, latest
from .links import attach_links
from .overview import overview

if TYPE_CHECKING:
    from django.db.models import QuerySet

    _Paginator = Paginator[IdempotencyKey]
else:  # Django's class takes no parameters when it runs
    _Paginator = Paginator


class BoundedPaginator(_Paginator):
    """Counts up to a limit: the changelist asks its paginator, and count(*) reads the whole table."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.values("pk")[: limits.LISTED].count())


class BoundedChangeList(ChangeList):
    """The newest keys first; of those that need attention, the oldest. `?o=` would sort the whole table."""

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return ["pk"] if self._oldest_first else ["-pk"]

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[IdempotencyKey]:
        """Look the keys of a state up last, so that the other filters and the search choose among all of them.

        Other filters look at the latest keys only. A search is by an index, and needs no such limit.
        """
        found = super().get_queryset(request, exclude_parameters)
        if self._state in BY_INDEX:
            ids = find(self._state, found).ids
            return found.filter(pk__in=ids[: limits.LISTED] if self._oldest_first else ids[-limits.LISTED :])
        return latest(found, limits.FILTERED) if self.has_active_filters and not self.query else found

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        mark(self.result_list, self.root_queryset.db)
        attach_links(self.result_list, self.model_admin, request)
        # Above the plain list only: a search, a filter or another page does not wait for the overview.
        self.overview = None if request.GET else overview(self.root_queryset)
        if self.overview:
            attach_links([waiting.row for waiting in self.overview.oldest], self.model_admin, request)

    @property
    def _state(self) -> str:
        return str(self.params.get(StateFilter.parameter_name))

    @property
    def _oldest_first(self) -> bool:
        return self._state in ("attention", *ATTENTION)
