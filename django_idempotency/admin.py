"""Looking at keys: read-only, and never a query over the whole table."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Max, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.http import parse_header_parameters
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .models import IdempotencyKey
from .protocol.digests import key_hash
from .protocol.keys import InvalidKey, parse_header
from .protocol.snapshots import decode_headers

if TYPE_CHECKING:
    _Paginator = Paginator[IdempotencyKey]
    _ModelAdmin = admin.ModelAdmin[IdempotencyKey]
else:  # Django's classes take no parameters when they run
    _Paginator, _ModelAdmin = Paginator, admin.ModelAdmin

LISTED = 2_000
"""How many keys the list pages through. Whoever looks further back knows the key and searches for it."""
FILTERED = 100_000
"""How many of the latest keys a filter looks at: a rare value would otherwise be sought in the whole table."""
SHOWN_BYTES = 64 * 1024
"""How much of a body the page shows, in bytes of the body and in characters of what is made of it."""
DEEPEST = 20
"""Levels of indentation: beyond it a small, deeply nested body would become a page of megabytes."""


class BoundedPaginator(_Paginator):
    """Counts up to a limit: the changelist asks its paginator, and count(*) reads the whole table."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.values("pk")[:LISTED].count())


class NewestFirst(ChangeList):
    """Keeps the order of the primary key: `?o=` in the address would sort the whole table."""

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return ["-pk"]


class LatestFilter(admin.SimpleListFilter):
    """A filter over the latest keys only."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[IdempotencyKey]) -> QuerySet[IdempotencyKey]:
        if self.value() is None:
            return queryset
        newest = IdempotencyKey.objects.using(queryset.db).aggregate(newest=Max("pk"))["newest"] or 0
        return queryset.filter(pk__gt=newest - FILTERED, **self.condition(str(self.value())))

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


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(_ModelAdmin):
    actions = None
    list_display = ("key", "status", "operation", "scope", "status_code", "attempt", "created_at", "expires_at")
    list_filter = (StatusFilter, ResponseFilter)
    sortable_by = ()
    # Facets count every key of the table for every choice of every filter.
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    show_full_result_count = False
    search_fields = ("key",)
    search_help_text = _("The client's key, whole. With or without its quotes.")
    fieldsets = (
        (None, {"fields": ("key", "status", "operation", "scope", "attempt", "last_error")}),
        (_("Times"), {"fields": ("created_at", "completed_at", "expires_at", "locked_until")}),
        (_("Response"), {"fields": ("status_code", "response_headers", "response_body")}),
        (_("Request"), {"fields": ("fingerprint_hex",)}),
    )
    readonly_fields = ("response_headers", "response_body", "fingerprint_hex")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> bool:
        return request.user.has_perm("django_idempotency.view_idempotencykey")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return NewestFirst

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """The filters, nothing else: `?body__startswith=` would read a body letter by letter without permission."""
        return lookup in {filter_.parameter_name for filter_ in self.list_filter}

    def get_queryset(self, request: HttpRequest) -> QuerySet[IdempotencyKey]:
        return super().get_queryset(request).defer("body", "headers", "last_error")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[IdempotencyKey], search_term: str
    ) -> tuple[QuerySet[IdempotencyKey], bool]:
        """The exact key, by the leading column of the unique index."""
        if not search_term.strip():
            return queryset, False
        try:
            key = parse_header(search_term)
        except InvalidKey:
            return queryset.none(), False
        return queryset.filter(key_hash=key_hash(key), key=key), False

    def get_fieldsets(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> Any:
        if request.user.has_perm("django_idempotency.view_response"):
            return self.fieldsets
        hidden = {"fields": ("status_code", "response_hidden")}
        return [(name, hidden if "response_body" in options["fields"] else options) for name, options in self.fieldsets]

    def get_readonly_fields(self, request: HttpRequest, obj: IdempotencyKey | None = None) -> Any:
        return (*self.readonly_fields, "response_hidden")

    @admin.display(description=_("response"))
    def response_hidden(self, obj: IdempotencyKey) -> str:
        return gettext("You need the permission “Can view stored response bodies” to see it.")

    @admin.display(description=_("headers"))
    def response_headers(self, obj: IdempotencyKey) -> str:
        rows = format_html_join("", "<tr><th>{}</th><td>{}</td></tr>", decode_headers(obj.headers))
        return format_html("<table>{}</table>", rows) if rows else "-"

    @admin.display(description=_("body"))
    def response_body(self, obj: IdempotencyKey) -> str:
        if obj.body is None:
            return gettext("Not stored.")
        return format_html('<pre style="white-space: pre-wrap">{}</pre>', readable_body(obj))

    @admin.display(description=_("fingerprint"))
    def fingerprint_hex(self, obj: IdempotencyKey) -> str:
        return bytes(obj.fingerprint).hex() if obj.fingerprint else "-"


def readable_body(row: IdempotencyKey) -> str:
    """A stored body as text: indented JSON, text as it is, anything else by its size. Not escaped."""
    body = bytes(row.body or b"")
    content_type = next((v for name, v in decode_headers(row.headers) if name.lower() == "content-type"), "")
    media_type, parameters = parse_header_parameters(content_type[:1000])  # Django refuses long ones
    if media_type.endswith("json"):
        text = _indented(body) if len(body) <= SHOWN_BYTES else _decoded(body)
    elif media_type.startswith("text/") or media_type.endswith(("xml", "urlencoded")):
        text = _decoded(body, parameters.get("charset", "utf-8"))
    else:
        return gettext("%(size)d bytes of %(type)s") % {"size": len(body), "type": media_type or "?"}
    if len(body) > SHOWN_BYTES or len(text) > SHOWN_BYTES:
        text = text[:SHOWN_BYTES] + "\n" + gettext("… (%(size)d bytes in all)") % {"size": len(body)}
    return text


def _decoded(body: bytes, charset: str = "utf-8") -> str:
    shown = body[:SHOWN_BYTES]
    try:
        return shown.decode(charset, errors="replace")
    except (LookupError, ValueError):  # unknown, or no character set at all ("zlib")
        return shown.decode(errors="replace")


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]|[^][{},:"\s]+')
_OPENING, _CLOSING = frozenset("[{"), frozenset("]}")


def _indented(body: bytes) -> str:
    """Indent JSON token by token: numbers, repeated names and their order stay as the client got them.

    To parse it and write it again would show an amount of 1.10 as 1.1, and the last of two equal names only.
    """
    text = _decoded(body)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    parts: list[str] = []
    depth, previous = 0, ""
    for piece in _JSON_TOKEN.findall(text):
        depth += (previous in _OPENING) - (piece in _CLOSING)
        if previous == "," or (previous in _OPENING) != (piece in _CLOSING):
            parts.append("\n" + "  " * min(depth, DEEPEST))
        parts.append(_readable(piece) + (" " if piece == ":" else ""))
        previous = piece
    return "".join(parts)


def _readable(piece: str) -> str:
    """A string with its escaped letters spelt out, unless they are halves of a pair, which no page can encode."""
    if "\\u" not in piece:
        return piece
    spelt = json.dumps(json.loads(piece), ensure_ascii=False)
    return piece if any("\ud800" <= letter <= "\udfff" for letter in spelt) else spelt
