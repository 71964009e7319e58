"""The admin pages of keys: read-only, except for decisions about keys that are stuck or in doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import flatten
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.timesince import timesince
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..engine.conf import get_settings
from ..engine.protocol.snapshots import decode_headers
from ..engine.stores import alias_for
from ..engine.stores.sealing import unseal_response
from ..models import IdempotencyKey
from .badges import badge
from .bodies import encodable, readable_body
from .decisions import decision_urls, possible_decisions
from .facts import expiry, facts_of
from .filters import DateFilter, OperationFilter, ResponseFilter, StateFilter
from .links import attach_links
from .listing import BoundedChangeList, BoundedPaginator
from .permissions import may_resolve, may_see_responses
from .sealed import or_why_not, readable_error
from .search import search
from .selections import answer_selected, release_selected
from .story import story_of
from .texts import moment, readable_operation, shortened
from .timeline import last_decision, timeline

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[IdempotencyKey]
else:  # Django's class takes no parameters when it runs
    _ModelAdmin = admin.ModelAdmin


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(_ModelAdmin):
    """The admin of keys, registered by this package. Subclass it, for example to limit `get_queryset()`.

    A user needs `view_idempotencykey` to see that there are keys, `view_response` to see the keys themselves and stored
    responses, and `resolve_idempotencykey` to take decisions. Nothing else can be changed.
    """

    actions = (answer_selected, release_selected)
    list_display = ("short_key", "resource", "route", "caller", "state", "age", "response_status")
    list_filter = (StateFilter, OperationFilter, DateFilter, ResponseFilter)
    sortable_by = ()
    # Facets count every key of the table for every choice of every filter.
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    show_full_result_count = False
    search_fields = ("key",)
    search_help_text = _(
        "The complete key as the client sent it, its reference in the log, a resource (“59”, “order 59”), or a user "
        "name."
    )
    fieldsets = (
        (_("Timeline"), {"fields": ("timeline",)}),
        (None, {"fields": ("key", "resource", "route", "caller", "scope", "policy_text", "attempt", "error")}),
        (_("Times"), {"fields": ("created", "updated", "completed", "expires", "lease")}),
        (_("Response"), {"fields": ("status_code", "response_headers", "response_body")}),
        (_("Request"), {"fields": ("fingerprint_hex",)}),
    )
    readonly_fields = (
        *("state", "resource", "route", "caller", "policy_text", "error", "timeline", "age"),
        *("created", "updated", "completed", "expires", "lease"),
        *("response_headers", "response_body", "fingerprint_hex"),
        *("reference", "error_unless_encrypted", "response_hidden", "timeline_without_results"),
    )

    class Media:
        css = {"all": ["django_idempotency/admin.css"]}
        js = ["django_idempotency/admin.js"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> bool:
        return request.user.has_perm("django_idempotency.view_idempotencykey")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BoundedChangeList

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Allow only the filters: `?body__startswith=` would reveal a body letter by letter without permission."""
        return lookup in {filter_.parameter_name for filter_ in self.list_filter}

    def get_queryset(self, request: HttpRequest) -> QuerySet[IdempotencyKey]:
        # Never a replica: a decision is taken on the database that its key was read from.
        keys = super().get_queryset(request).using(alias_for(None))
        return keys.defer("body", "headers", "last_error", "decisions")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[IdempotencyKey], search_term: str
    ) -> tuple[QuerySet[IdempotencyKey], bool]:
        return search(queryset, search_term), False

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        """For the actions on a selection."""
        return may_resolve(request)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> IdempotencyKey | None:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            attach_links([found], self, request)
        return found

    def get_list_display(self, request: HttpRequest) -> Any:
        return self.list_display if may_see_responses(request) else _without_secrets(self.list_display)

    def get_fieldsets(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> Any:
        if may_see_responses(request):
            return self.fieldsets
        return [(name, {**options, "fields": _without_secrets(options["fields"])}) for name, options in self.fieldsets]

    def get_urls(self) -> list[Any]:
        return [*decision_urls(self), *super().get_urls()]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        obj = kwargs["obj"]
        facts = facts_of(obj)
        context |= {
            "decisions": possible_decisions(request, obj),
            "story": story_of(facts),
            "badge": badge(facts.state),
            "needs_attention": facts.needs_attention,
            "last_decision": last_decision(obj, results=may_see_responses(request)),
            "runbook": get_settings().runbook_url,
            "subtitle": f"{readable_operation(obj.operation)} {obj.reference}",
        }
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=_("key"))
    def short_key(self, obj: IdempotencyKey) -> str:
        return shortened(obj.key)

    @admin.display(description=_("reference"))
    def reference(self, obj: IdempotencyKey) -> str:
        return obj.reference

    @admin.display(description=_("resource"))
    def resource(self, obj: IdempotencyKey) -> str:
        return obj.resource_link  # type: ignore[attr-defined, no-any-return]

    @admin.display(description=_("operation"))
    def route(self, obj: IdempotencyKey) -> str:
        return readable_operation(obj.operation)

    @admin.display(description=_("caller"))
    def caller(self, obj: IdempotencyKey) -> str:
        return obj.caller_link  # type: ignore[attr-defined, no-any-return]

    @admin.display(description=_("state"))
    def state(self, obj: IdempotencyKey) -> str:
        return badge(obj.worst_state)  # type: ignore[attr-defined]

    @admin.display(description=_("age"))
    def age(self, obj: IdempotencyKey) -> str:
        return timesince(obj.created_at, depth=1)

    @admin.display(description=_("status"), empty_value="-")
    def response_status(self, obj: IdempotencyKey) -> int | None:
        return obj.status_code

    @admin.display(description=_("policy"))
    def policy_text(self, obj: IdempotencyKey) -> str:
        return obj.get_policy_display() or "-"

    @admin.display(description=_("claimed"))
    def created(self, obj: IdempotencyKey) -> str:
        return moment(obj.created_at)

    @admin.display(description=_("last change"))
    def updated(self, obj: IdempotencyKey) -> str:
        return moment(obj.updated_at)

    @admin.display(description=_("completed"))
    def completed(self, obj: IdempotencyKey) -> str:
        return moment(obj.completed_at)

    @admin.display(description=_("expires"))
    def expires(self, obj: IdempotencyKey) -> str:
        return expiry(facts_of(obj))

    @admin.display(description=_("locked until"))
    def lease(self, obj: IdempotencyKey) -> str:
        return moment(obj.locked_until)

    @admin.display(description=_("last error"))
    def error(self, obj: IdempotencyKey) -> str:
        return readable_error(obj, "last_error", obj.last_error, allowed=True) or "-"

    @admin.display(description=_("last error"))
    def error_unless_encrypted(self, obj: IdempotencyKey) -> str:
        return readable_error(obj, "last_error", obj.last_error, allowed=False) or "-"

    @admin.display(description=_("timeline"))
    def timeline(self, obj: IdempotencyKey) -> str:
        return timeline(obj, results=True)

    @admin.display(description=_("timeline"))
    def timeline_without_results(self, obj: IdempotencyKey) -> str:
        return timeline(obj, results=False)

    @admin.display(description=_("response"))
    def response_hidden(self, obj: IdempotencyKey) -> str:
        return gettext("You need the permission “Can view stored response bodies” to see the response.")

    @admin.display(description=_("headers"))
    @or_why_not
    def response_headers(self, obj: IdempotencyKey) -> str:
        headers, _body = unseal_response(obj)
        shown = ((encodable(name), encodable(value)) for name, value in decode_headers(headers))
        rows = format_html_join("", '<tr><th scope="row">{}</th><td>{}</td></tr>', shown)
        return format_html("<table>{}</table>", rows) if rows else "-"

    @admin.display(description=_("body"))
    @or_why_not
    def response_body(self, obj: IdempotencyKey) -> str:
        if obj.body is None:
            return gettext("Not stored.")
        return format_html('<pre class="idempotency-body">{}</pre>', readable_body(obj))

    @admin.display(description=_("fingerprint"))
    def fingerprint_hex(self, obj: IdempotencyKey) -> str:
        return bytes(obj.fingerprint).hex() if obj.fingerprint else "-"


WITHOUT_RESPONSE: dict[str, tuple[str, ...]] = {
    "key": ("reference",),
    "short_key": ("reference",),
    "error": ("error_unless_encrypted",),
    "timeline": ("timeline_without_results",),
    "response_headers": (),
    "response_body": ("response_hidden",),
}
"""What is shown instead of a field to a person who may not see responses. The key itself is among these fields: where
callers are anonymous, the key gets the response."""


def _without_secrets(fields: Any) -> tuple[Any, ...]:
    return tuple(shown for field in flatten(fields) for shown in WITHOUT_RESPONSE.get(field, (field,)))
