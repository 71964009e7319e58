"""The list of keys in Django's admin, with filters and a search that never read the whole table."""

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
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..engine.request.callers import scope_of_user
from ..engine.stores.states import STATES
from ..maintenance.erasure import of_scope
from ..maintenance.lookups import find_key, refers_to
from ..models import IdempotencyKey
from . import overview
from .headline import headline
from .links import show
from .texts import SHAPES, moment, readable_operation

Keys = QuerySet[IdempotencyKey]
RUNNING = 10
"""The maximum number of open transactions shown above the list. The longest-running come first."""


# `Paginator` takes no type parameters at run time.
class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts up to 2,000 keys, because an unlimited count(*) would read the whole table."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.values("pk")[: overview.LISTED].count())


class BoundedChangeList(ChangeList):
    """Shows the newest keys first, or the oldest first if the list contains only keys that need attention.

    `?o=` cannot change the order, because that would mean sorting the whole table.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Django's own title, "Select idempotency key to view", would appear above a warning about keys that need
        # attention.
        self.title = str(capfirst(self.opts.verbose_name_plural))

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return ["pk"] if self._oldest_first else ["-pk"]

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Keys:
        """Apply the search and the other filters, then the state filter.

        A filter covers only the latest 100,000 keys, unless it selects a state that has an index. A search covers all
        keys, because it uses indexes.
        """
        keys = super().get_queryset(request, exclude_parameters)
        if self._by_index:
            ids = overview.find(self._state, keys)
            return keys.filter(pk__in=ids[: overview.LISTED] if self._oldest_first else ids[-overview.LISTED :])
        return overview.latest(keys, overview.FILTERED) if self.has_active_filters and not self.query else keys

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        show(self.result_list, self.model_admin, request)
        self.names_searched, self.needed = request.user.has_perm(view_users()), view_users()
        if not self.names_searched:
            self.search_help_text = gettext(
                "The complete key as the client sent it, its reference in the log, or a resource (“59”, “order 59”)."
            )
        self.advice: Any = STATES[self._state].to_do if self._state in overview.NEEDING else ""
        if self._state == "attention":
            self.advice = _("Begin with the oldest key that is in doubt, because a customer may have paid.")
        self.at_least = self.result_count == overview.LISTED
        self.since = "" if self.query or self._by_index or not self.has_active_filters else self._oldest_looked_at()
        # The overview takes several queries, so it is shown only on the first page, and only if no search or filter is
        # active.
        if not request.GET:
            self.headline = headline(self.model_admin, request, self.root_queryset)
            model_admin: Any = self.model_admin
            if model_admin.has_resolve_permission(request):
                self.running = self.headline.open[:RUNNING]

    def _oldest_looked_at(self) -> str:
        keys = overview.latest(self.root_queryset, overview.FILTERED).order_by("pk")
        return moment(keys.values_list("created_at", flat=True).first())

    @property
    def _by_index(self) -> bool:
        return self._state in ("attention", *overview.FOUND)

    @property
    def _state(self) -> str:
        return str(self.params.get(StateFilter.parameter_name))

    @property
    def _oldest_first(self) -> bool:
        return self._state in ("attention", *overview.NEEDING)


class StateFilter(admin.SimpleListFilter):
    """The state filter, which finds only completed keys: `BoundedChangeList` finds the keys in all other states."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("attention", _("needs attention")), *((name, STATES[name].label) for name in SHAPES)]

    def queryset(self, request: HttpRequest, queryset: Keys) -> Keys:
        if self.value() in (None, "attention", *overview.FOUND):
            return queryset  # found by `BoundedChangeList.get_queryset`
        return queryset.filter(status=self.value()) if self.value() == "completed" else queryset.none()


class OperationFilter(admin.SimpleListFilter):
    """The operation filter, which offers the operations of the latest 2,000 keys."""

    title = _("operation")
    parameter_name = "operation"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        recent = overview.latest(model_admin.get_queryset(request), overview.LISTED).order_by()
        operations = set(recent.values_list("operation", flat=True).distinct())
        if (chosen := request.GET.get(self.parameter_name)) is not None:
            operations.add(chosen)
        return [(operation, readable_operation(operation)) for operation in sorted(operations)]

    def queryset(self, request: HttpRequest, queryset: Keys) -> Keys:
        operation = self.value()
        if operation is None:
            return queryset
        # PostgreSQL rejects a NUL character.
        return queryset.none() if "\0" in operation else queryset.filter(operation=operation)


def view_users() -> str:
    """The permission required to search for keys by user name."""
    users = get_user_model()._meta
    return f"{users.app_label}.{get_permission_codename('view', users)}"


def search(keys: Keys, term: str, request: HttpRequest) -> Keys:
    """Find the keys that match the text, which may be a key, a resource or a caller.

    This takes four queries (one for keys, one for resources and two for callers), each finding up to 2,000 keys.
    """
    text = term.strip()
    if not text:
        return keys
    named = find_key(text, using=keys.db).order_by("key_hash", "scope_hash")
    about = keys.filter(refers_to(text)).order_by("resource_id", "resource_type")
    parts = [named, about]
    sent = keys.filter(reduce(or_, map(of_scope, _scopes(text, request))))
    # For a caller with more than 2,000 keys, a query that uses the index on `scope` can miss the newest ones, so a
    # separate query finds them.
    parts += [overview.latest(sent, overview.FILTERED).order_by("-pk"), sent.order_by("scope")]
    ids = {pk for part in parts for pk in part.values_list("pk", flat=True)[: overview.LISTED]}
    return keys.filter(pk__in=ids)


def _scopes(text: str, request: HttpRequest) -> set[str]:
    """The scopes to search for: the text itself and, if the person may view users, the scope of the user with that
    name.
    """
    users = get_user_model()
    scopes = {text}
    if request.user.has_perm(view_users()):
        for user in users._default_manager.filter(**{users.USERNAME_FIELD: text})[:1]:
            scopes.add(scope_of_user(user))
    return scopes
