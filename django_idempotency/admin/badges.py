"""The state of a key at a glance: a word and a shape, so that nobody needs the colour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ..engine.stores import store_for
from ..models import IdempotencyKey
from . import limits

Status = IdempotencyKey.Status

BADGES: dict[str, tuple[str, Any]] = {
    Status.COMPLETED.value: ("✓", Status.COMPLETED.label),
    Status.IN_PROGRESS.value: ("▶", Status.IN_PROGRESS.label),
    Status.FAILED.value: ("✕", Status.FAILED.label),
    "in_flight": ("▶", _("in flight")),
    "stuck": ("▲", _("stuck")),
    "in_doubt": ("?", _("in doubt")),
}
"""Shape and word of each state; the style sheet has a class for each."""


def badge(name: str) -> SafeString:
    shape, label = BADGES[name]
    return format_html(
        '<span class="idempotency-badge idempotency-{}"><span aria-hidden="true">{}</span> {}</span>',
        name,
        shape,
        label,
    )


def badges(row: IdempotencyKey) -> SafeString:
    """Its status, and whether it needs attention."""
    marks: list[str] | None = getattr(row, "attention_marks", None)
    if marks is None:
        mark([row], str(row._state.db))
        marks = row.attention_marks  # type: ignore[attr-defined]
    return format_html_join(" ", "{}", ((badge(name),) for name in (row.status, *marks)))


def mark(rows: Iterable[IdempotencyKey], using: str) -> None:
    """Note on each row whether it is stuck or in doubt: two queries for all, none while all are completed."""
    store = store_for(using)
    open_ids = [row.pk for row in rows if row.status != Status.COMPLETED]
    stuck = store.stuck_ids(limits.LISTED, among=open_ids)
    in_doubt = store.in_doubt_ids(limits.LISTED, among=open_ids)
    for row in rows:
        found = (("stuck", stuck), ("in_doubt", in_doubt))
        row.attention_marks = [name for name, ids in found if row.pk in ids]  # type: ignore[attr-defined]
