"""The state of a key at a glance: a word and a shape. The colour says nothing that they do not say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ..maintenance import lookups
from ..models import IdempotencyKey, IdempotencyStep

Status = IdempotencyKey.Status
ATTENTION = ("in_doubt", "half_done", "stuck")
"""The states that need a person, the worst first: in doubt, it is unknown whether money has moved."""

BADGES: dict[str, tuple[str, Any]] = {
    "in_doubt": ("?", _("in doubt")),
    "half_done": ("◐", _("half done")),
    "stuck": ("▲", _("stuck")),
    "failed": ("✕", Status.FAILED.label),
    "in_flight": ("▶", _("in flight")),
    "completed": ("✓", Status.COMPLETED.label),
}
"""Shape and word of each state, the worst first. The style sheet has a class for each."""


def badge(name: str) -> SafeString:
    shape, label = BADGES[name]
    return format_html(
        '<span class="idempotency-badge idempotency-{}"><span aria-hidden="true">{}</span> {}</span>',
        name,
        shape,
        label,
    )


def worst(row: IdempotencyKey, *, live: bool, in_doubt: bool, called: bool) -> str:
    """Return the worst state that is true of a key.

    Args:
        row: the key.
        live: whether a worker holds its lease.
        in_doubt: whether a step was started and has no result.
        called: whether an external call has ended.
    """
    if row.status == Status.COMPLETED:
        return "completed"
    if live:
        return "in_flight"
    if in_doubt:
        return "in_doubt"
    if called:
        return "half_done"
    return "failed" if row.status == Status.FAILED else "stuck"


def mark(rows: Iterable[IdempotencyKey], using: str) -> None:
    """Note its state on each row, as `worst_state`. Two queries for all rows; none if all are completed."""
    open_ids = [row.pk for row in rows if row.status != Status.COMPLETED]
    live = set(lookups.in_flight(using=using).filter(pk__in=open_ids).values_list("pk", flat=True))
    steps = IdempotencyStep.objects.using(using).filter(key__in=open_ids)
    in_doubt, called = set(), set()
    for key, kind, finished_at in steps.values_list("key_id", "kind", "finished_at"):
        if finished_at is None:
            in_doubt.add(key)
        elif kind == IdempotencyStep.Kind.CALL:
            called.add(key)
    for row in rows:
        row.worst_state = worst(  # type: ignore[attr-defined]
            row, live=row.pk in live, in_doubt=row.pk in in_doubt, called=row.pk in called
        )
