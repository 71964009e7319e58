"""The admin pages where authorized users can read keys and resolve those that no worker holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path
from django.utils.html import format_html
from django.utils.timesince import timesince
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..engine.stores import alias_for
from ..engine.stores.states import ATTENTION
from ..models import IdempotencyKey
from .changelist import BoundedChangeList, BoundedPaginator, OperationFilter, StateFilter, search
from .decisions import NAME, answer_selected, decision_urls, release_selected
from .export import export
from .forms import DECISIONS
from .links import Shown, show, shown
from .overview import same_caller, same_key, same_request
from .story import story_of
from .texts import NOTHING, moment, readable_error, readable_response, shortened
from .timeline import last_decision, timeline


def _field(title: Any, text: Callable[[Shown], Any]) -> Any:
    """Create a list column, or a field on a key's page, that shows what `text` returns for the key."""

    @admin.display(description=title)
    def display(model_admin: Any, obj: Any) -> Any:
        return text(shown(obj))

    return display


def _short_key(key: Shown) -> Any:
    reference = key.facts.row.reference
    html = '{}<br><span class="small">{}</span>'
    return format_html(html, shortened(key.facts.row.key), reference) if key.secrets else reference


def _response(key: Shown) -> Any:
    if key.facts.row.status_code is None:
        return "-"
    if not key.secrets:
        return gettext("To see the response, you need the permission “Can view stored response bodies”.")
    return format_html('<pre class="idempotency-body">{}</pre>', readable_response(key.facts.row))


def _others(keys: QuerySet[IdempotencyKey], row: IdempotencyKey) -> list[tuple[str, IdempotencyKey, str]]:
    """Other keys that may belong to the same request, each listed once, with the reason and the key's creation time."""
    reasons = (
        (gettext("The same request about the same resource was sent with another key:"), same_request(keys, row)),
        (gettext("The same caller sent the same request with another key:"), same_caller(keys, row)),
        (gettext("The same caller sent this key to another operation:"), same_key(keys, row)),
    )
    named = {other.pk: (why, other, moment(other.created_at)) for why, others in reversed(reasons) for other in others}
    return list(named.values())


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Shows the stored keys in Django's admin. A subclass with its own `get_queryset()` can show fewer of them.

    `view_idempotencykey` allows a user to see the list, but not the keys themselves. To see the keys and the stored
    responses, a user also needs `view_response`; to make decisions, a user needs `resolve_idempotencykey`. Only a
    decision can change a key here.
    """

    actions = (answer_selected, release_selected)
    list_display = ("short_key", "resource", "route", "caller", "state", "age", "answered")
    list_filter = (StateFilter, OperationFilter)
    sortable_by = ()
    # To show the counts beside a filter's choices (facets), Django would count every key in the table.
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    show_full_result_count = False
    search_fields = ("key",)
    search_help_text = _(
        "The complete key as the client sent it, its reference in the log, a resource (“59”, “order 59”) or a user "
        "name."
    )
    fieldsets = (
        (_("Timeline"), {"fields": ("timeline",)}),
        (
            None,
            {
                "fields": (
                    ("full_key", "full_scope"),
                    ("policy", "attempt"),
                    ("worker", "error"),
                )
            },
        ),
        (_("Response"), {"fields": ("response",)}),
    )

    # Anyone who sends an anonymous caller's key gets the response stored under it, so keys are shown only to users who
    # are allowed to see responses.
    short_key = _field(_("key"), _short_key)
    full_key = _field(_("key"), lambda key: key.name)
    resource = _field(_("resource"), lambda key: key.resource)
    route = _field(_("operation"), lambda key: key.operation)
    caller = _field(_("caller"), lambda key: key.caller)
    full_scope = _field(_("scope"), lambda key: key.scope)
    state = _field(_("state"), lambda key: key.badge)
    answered = _field(_("HTTP"), lambda key: key.facts.row.status_code or NOTHING)
    age = _field(_("age"), lambda key: timesince(key.facts.row.created_at, depth=1))
    error = _field(
        _("last error"),
        lambda key: readable_error(key.facts.row, "last_error", key.facts.row.last_error, allowed=key.secrets) or "-",
    )
    timeline = _field(_("timeline"), timeline)
    response = _field(_("response"), _response)

    class Media:
        css = {"all": ["django_idempotency/admin.css"]}
        js = ["django_idempotency/admin.js"]

    def has_add_permission(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def has_view_permission(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> bool:
        return request.user.has_perm("django_idempotency.view_idempotencykey")

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        """Whether this user may make decisions. If not, the list offers no actions."""
        return request.user.has_perm("django_idempotency.resolve_idempotencykey")

    def may_decide(self, request: HttpRequest, obj: IdempotencyKey | None) -> bool:
        """Whether this user may make decisions about this key. Called before each decision."""
        return self.has_resolve_permission(request) and self.has_view_permission(request, obj)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BoundedChangeList

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Allow only the filters in `list_filter`.

        With `?body__startswith=`, users could guess the contents of responses that they aren't allowed to see.
        """
        return lookup in {filter_.parameter_name for filter_ in self.list_filter}

    def get_queryset(self, request: HttpRequest) -> QuerySet[IdempotencyKey]:
        # Decisions are written to the database that the key was read from, so it must not be a replica.
        keys = super().get_queryset(request).using(alias_for(None))
        return keys.defer("body", "headers", "last_error", "decisions")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[IdempotencyKey], search_term: str
    ) -> tuple[QuerySet[IdempotencyKey], bool]:
        return search(queryset, search_term, request), False

    def get_fieldsets(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> Any:
        """Leave the response out while there is none."""
        every = super().get_fieldsets(request, obj)
        return every if obj is None or obj.status_code is not None else every[:-1]

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> IdempotencyKey | None:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            show([row], self, request, results=True)
        return row

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the key's timeline, because Django's history doesn't include decisions made outside the admin."""
        if not self.has_view_permission(request, self.get_object(request, object_id)):
            raise PermissionDenied
        return HttpResponseRedirect("../change/")

    def get_urls(self) -> list[Any]:
        listed = self.admin_site.admin_view(partial(export, self))
        return [*decision_urls(self), path("export/", listed, name=f"{NAME}_export"), *super().get_urls()]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        key = shown(kwargs["obj"])
        may_decide = self.may_decide(request, key.facts.row)
        context |= {
            "decisions": [(form, form.harms(key.facts)) for form in DECISIONS if may_decide and form.fits(key.facts)],
            "key": key,
            "story": story_of(key.facts),
            "needs_attention": key.facts.state in ATTENTION,
            "last_decision": last_decision(key),
            "others": _others(self.get_queryset(request), key.facts.row),
            "title": f"{key.operation} {key.facts.row.reference}",
            "subtitle": None,
        }
        return super().render_change_form(request, context, *args, **kwargs)
