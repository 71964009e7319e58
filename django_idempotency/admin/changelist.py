"""This module makes the admin's list of keys, with filters and a search.

The queries of this module never read the whole table.
"""

from __future__ import annotations

from functools import cached_property, reduce
from operator import or_
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_permission_codename, get_user_model
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..engine.conf import get_settings
from ..engine.request.callers import scope_of_user
from ..engine.stores.states import STATES
from ..maintenance.erasure import of_scope
from ..maintenance.lookups import find_key, refers_to, running_transactions
from ..models import IdempotencyKey
from . import overview
from .links import show
from .texts import SHAPES, moment, readable_operation

Keys = QuerySet[IdempotencyKey]
RUNNING = 10
"""The page shows at most this number of open transactions above the list: those that have run longest."""


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # the class takes no type parameters at run time
    """This paginator counts at most 2,000 keys, because a full count(*) would read the whole table.

    Django's admin calls the paginator to count the keys of the list.
    """

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.values("pk")[: overview.LISTED].count())


class BoundedChangeList(ChangeList):
    """The admin's list shows the newest keys first. A list of keys that need attention shows the oldest keys first.

    A person cannot change the order with `?o=` in the URL, because the database would have to sort the whole table.
    """

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return ["pk"] if self._oldest_first else ["-pk"]

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Keys:
        """Return the keys of the list, after the search and all filters.

        The filter by state runs last, and looks only at keys that the search and the other filters have found.

        If a person chooses filters but no state, the filters look only at the latest 100,000 keys. The state
        `completed` has the same limit. A search looks at all keys, because a search uses an index.
        """
        found = super().get_queryset(request, exclude_parameters)
        if self._by_index:
            ids = overview.find(self._state, found)
            return found.filter(pk__in=ids[: overview.LISTED] if self._oldest_first else ids[-overview.LISTED :])
        return overview.latest(found, overview.FILTERED) if self.has_active_filters and not self.query else found

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        show(self.result_list, self.model_admin, request)
        self.at_least = self.result_count == overview.LISTED
        self.since = "" if self.query or self._by_index or not self.has_active_filters else self._oldest_looked_at()
        # If the URL has a search, a filter or a page number, the page shows no overview of the states. So this page
        # does not wait for the queries of the overview.
        if not request.GET:
            self.overview = overview.overview(self.root_queryset)
            self.attention = overview.attention(self.overview)
            self.runbook = get_settings().runbook_url
            model_admin: Any = self.model_admin
            if model_admin.has_resolve_permission(request):
                self.running = (running_transactions(using=self.root_queryset.db) or [])[:RUNNING]

    def _oldest_looked_at(self) -> str:
        keys = overview.latest(self.root_queryset, overview.FILTERED).order_by("pk")
        return moment(keys.values_list("created_at", flat=True).first())

    @property
    def _by_index(self) -> bool:
        return self._state in ("attention", *overview.BY_INDEX)

    @property
    def _state(self) -> str:
        return str(self.params.get(StateFilter.parameter_name))

    @property
    def _oldest_first(self) -> bool:
        return self._state in ("attention", *overview.NEEDING)


class StateFilter(admin.SimpleListFilter):
    """This is the admin's filter by state.

    The class `BoundedChangeList` finds the keys in each state except `completed`, after all other filters have run.
    """

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("attention", _("needs attention")), *((name, STATES[name].label) for name in SHAPES)]

    def queryset(self, request: HttpRequest, queryset: Keys) -> Keys:
        if self.value() in (None, "attention", *overview.BY_INDEX):
            return queryset  # `BoundedChangeList.get_queryset` finds these keys
        return queryset.filter(status=self.value()) if self.value() == "completed" else queryset.none()


class OperationFilter(admin.SimpleListFilter):
    """The admin's filter by operation shows the operations of the latest 2,000 keys."""

    title = _("operation")
    parameter_name = "operation"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        recent = overview.latest(model_admin.get_queryset(request), overview.LISTED).order_by()
        found = set(recent.values_list("operation", flat=True).distinct())
        if (chosen := request.GET.get(self.parameter_name)) is not None:
            found.add(chosen)
        return [(operation, readable_operation(operation)) for operation in sorted(found)]

    def queryset(self, request: HttpRequest, queryset: Keys) -> Keys:
        operation = self.value()
        if operation is None:
            return queryset
        # PostgreSQL refuses a text with a NUL character.
        return queryset.none() if "\0" in operation else queryset.filter(operation=operation)


def search(keys: Keys, term: str, request: HttpRequest) -> Keys:
    """Return the keys that match a search text. The search text can be a key, a resource or a caller.

    One query searches by key, one query by resource, and two queries by caller. Each of these four queries finds at
    most 2,000 keys.
    """
    text = term.strip()
    if not text:
        return keys
    named = find_key(text, using=keys.db).order_by("key_hash", "scope_hash")
    about = keys.filter(refers_to(text)).order_by("resource_id", "resource_type")
    parts = [named, about]
    sent = keys.filter(reduce(or_, map(of_scope, _scopes(text, request))))
    # The index on `scope` can return the keys of one caller in any order. So a separate query finds the newest keys of
    # a caller.
    parts += [overview.latest(sent, overview.FILTERED).order_by("-pk"), sent.order_by("scope")]
    found = {pk for part in parts for pk in part.values_list("pk", flat=True)[: overview.LISTED]}
    return keys.filter(pk__in=found)


def _scopes(text: str, request: HttpRequest) -> set[str]:
    """Return the scopes to search for. If the search text is the name of a user, the scope of this user is added.

    The search text itself is always one of the scopes. A person needs the permission to view users in order to search
    for the name of a user.
    """
    users = get_user_model()
    scopes = {text}
    if request.user.has_perm(f"{users._meta.app_label}.{get_permission_codename('view', users._meta)}"):
        for user in users._default_manager.filter(**{users.USERNAME_FIELD: text})[:1]:
            scopes.add(scope_of_user(user))
    return scopes
