"""This module reads and writes the list of decisions about a key. The list is stored in a column of the key's row. Each
decision has an action and a time. A decision can also have a reason, and the name of the person or of the command.

A decision can delete steps that were in doubt. The list contains a copy of the deleted steps, so that people can still
read them. When the key's row is deleted, the list is deleted, too.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.utils import timezone

from ..engine.protocol.digests import reference_of
from ..engine.stores.sealing import is_sealed, seal, unseal
from ..exceptions import NotDecryptable

if TYPE_CHECKING:
    from ..models import IdempotencyKey, IdempotencyStep


SEALED = "sealed"
"""The entry that holds a whole trail that could not be decrypted when the next decision was made."""
RECORDED = frozenset({"record", "correct"})
"""The actions that gave a step its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """This object is a decision that a person or a command has made about a key.

    Attributes:
        action: "release", "record", "correct", "answer" or "recover".
        at: the time of the decision, as ISO 8601 with the zone. The default is now.
        by: the user name, or the name of the command.
        reason: the reason that the person has written.
        attempt: the attempt that the decision was about.
        detail: the step that was recorded, or the status that was answered.
        steps: the steps that were in doubt then: name, kind, attempt, keyed, started_at, error.
        replaced: the old result that the action "correct" has replaced, in its stored form.
    """

    action: str
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    by: str = ""
    reason: str = ""
    attempt: int = 0
    detail: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list)
    replaced: str | None = None

    @property
    def moment(self) -> datetime:
        """Return the time of the decision as a `datetime`. If USE_TZ is True, this `datetime` has a time zone."""
        at = datetime.fromisoformat(self.at).astimezone(timezone.get_default_timezone())
        return at if settings.USE_TZ else at.replace(tzinfo=None)


NAMES = {field.name for field in fields(Decision)}


def decisions_of(key: IdempotencyKey) -> list[Decision]:
    """Return the decisions about this key. The oldest decision comes first. Raises `NotDecryptable`. Reads no database.

    If this version of the package cannot read an entry, the function returns a decision with the action "unreadable". A
    newer version of the package can write an entry of this kind. If a decision cannot be read, use the time of the
    key's last change as the decision's time. This function ignores unknown fields of an entry.
    """
    unreadable = Decision(action="unreadable", at=key.updated_at.isoformat(), by="?")
    return [
        Decision(**{name: entry[name] for name in NAMES & entry.keys()}) if _is_readable(entry) else unreadable
        for entry in _entries(key)
    ]


def correctable(key: IdempotencyKey) -> set[str]:
    """Return the names of the steps whose results were recorded by a person. If the decisions cannot be decrypted,
    return an empty set.
    """
    try:
        return {decision.detail for decision in decisions_of(key) if decision.action in RECORDED}
    except NotDecryptable:
        return set()


def with_decision(row: IdempotencyKey, decision: Decision) -> str | None:
    """Add a decision to the old decisions of a key, and return the new text for the column `decisions`.

    A trail whose encryption key is lost becomes the first entry of the new one, as it is.
    """
    try:
        trail = _entries(row)
    except NotDecryptable:
        if not is_sealed(row.decisions):
            raise
        trail = [{SEALED: row.decisions}]
    trail.append(asdict(decision))
    return seal(row, "decisions", json.dumps(trail, cls=DjangoJSONEncoder))


def step_entry(row: IdempotencyKey, step: IdempotencyStep) -> dict[str, Any]:
    """Return a copy of a step in doubt. The list of decisions contains the copy."""
    kept = {name: getattr(step, name) for name in ("name", "kind", "attempt", "keyed", "started_at")}
    return {**kept, "error": readable(row, "error", step.error, step.name)}


def readable(row: IdempotencyKey, column: str, stored: str | None, *step: str) -> str | None:
    """Decrypt a text that a decision keeps. Without its encryption key it is kept as it is, for the day the key is
    found: a decision rests on the books of the other side, and needs none of it.
    """
    try:
        return unseal(row, column, stored, *step)
    except NotDecryptable:
        return stored


def _is_readable(entry: Any) -> bool:
    """Return whether this version of the package can read the entry. If the entry cannot be read, the admin pages show
    a note about this, and nothing else.
    """
    try:
        steps = entry.get("steps", [])
        times = [entry["at"], *(step["started_at"] for step in steps)]
        texts = [entry["action"], entry.get("replaced") or "", *(entry.get(n, "") for n in ("by", "reason", "detail"))]
        texts += [text for s in steps for text in (s["name"], s["kind"], s["error"] or "", str(s["attempt"]))]
        return {*map(type, texts)} == {str} and all(1970 <= datetime.fromisoformat(at).year < 9999 for at in times)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _entries(row: IdempotencyKey) -> list[Any]:
    """Return all entries of the column `decisions`, also entries that this version of the package cannot read. Raises
    `NotDecryptable`.
    """
    text = unseal(row, "decisions", row.decisions)
    try:
        entries = json.loads(text or "[]")
    except (RecursionError, ValueError):
        entries = None
    if not isinstance(entries, list):
        raise NotDecryptable(
            f"The decisions about idempotency key {reference_of(row.key_hash)} cannot be read: the column 'decisions' "
            "holds no JSON list. It was changed in the database. Until it is put right, no decision can be added."
        )
    if entries and isinstance(entries[0], dict) and SEALED in entries[0]:
        with suppress(NotDecryptable):
            entries[:1] = json.loads(unseal(row, "decisions", entries[0][SEALED]) or "[]")
    return entries
