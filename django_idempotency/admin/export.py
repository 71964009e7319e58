"""The filtered list of keys as a CSV file, which you can attach to a ticket, compare with the called service's books,
or complete and pass to `resolve_idempotency_keys`.
"""

from __future__ import annotations

import csv
from typing import Any

from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest

from ..maintenance.lookups import version_of
from ..maintenance.sheet import TO_FILL, cell
from . import overview
from .links import show, shown
from .timeline import sent_keys

COLUMNS = (
    "id",
    "reference",
    "key",
    "operation",
    "scope",
    "resource",
    "state",
    "attempt",
    "worker",
    "claimed",
    "changed",
    "version",
)


def export(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """Export up to 2,000 keys from all pages of the list, with its current filters."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    try:
        rows = list(model_admin.get_changelist_instance(request).queryset[: overview.LISTED])
    except DisallowedModelAdminLookup:
        return HttpResponseBadRequest()
    show(rows, model_admin, request, steps=True)
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="idempotency-keys.csv"'
    writer = csv.writer(response, quoting=csv.QUOTE_ALL)
    writer.writerow((*TO_FILL, *COLUMNS, "in doubt", "derived keys", "ended"))
    for row in rows:
        key = shown(row)
        resource = f"{row.resource_type} {row.resource_id}" if row.resource_id else ""
        about = (row.pk, row.reference, row.key if key.secrets else "", row.operation, key.scope, resource)
        at = (
            str(key.facts.state.label),
            row.attempt,
            row.worker or "",
            row.created_at.isoformat(),
            row.updated_at.isoformat(),
            version_of(row),
        )
        steps = (", ".join(key.facts.in_doubt), ", ".join(sent_keys(key.facts)), ", ".join(key.facts.finished))
        writer.writerow(map(cell, (*[""] * len(TO_FILL), *about, *at, *steps)))
    return response
