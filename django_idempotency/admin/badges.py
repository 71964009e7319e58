"""The state of a key at a glance: a word and a shape. The colour says nothing that they do not say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ..maintenance import lookups
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
    """The status of a key, and whether the key needs attention."""
    marks: list[str] | None = getattr(row, "attention_marks", None)
    if marks is None:
        mark([row], str(row._state.db))
        marks = row.attention_marks  # type: ignore[attr-defined]
    return format_html_join(" ", "{}", ((badge(name),) for name in (row.status, *marks)))


def mark(rows: Iterable[IdempotencyKey], using: str) -> None:
    """Note on each row whether it is stuck or in doubt. Two queries for all rows; none if all are completed."""
    open_ids = [row.pk for row in rows if row.status != Status.COMPLETED]
    found = {name: attention_ids(name, using, pk__in=open_ids) for name in ("stuck", "in_doubt")}
    # Not noted yet, so no index has found it: committed without a lease.
    found["stuck"] += [row.pk for row in rows if row.status == Status.IN_PROGRESS and row.locked_until is None]
    for row in rows:
        row.attention_marks = [name for name, ids in found.items() if row.pk in ids]  # type: ignore[attr-defined]


ATTENTION = {"stuck": lookups.stuck, "in_doubt": lookups.in_doubt, "in_flight": lookups.in_flight}


def attention_ids(name: str, using: str, **among: Any) -> list[int]:
    """Primary keys of the keys that are `stuck`, `in_doubt` or `in_flight`: at most as many as the list shows."""
    keys = ATTENTION[name](using=using).filter(**among)
    return list(keys.values_list("pk", flat=True)[: limits.LISTED])
