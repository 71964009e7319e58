"""A key's audit trail of decisions, stored in a column of the key's row and deleted with the row.

Each entry says what was decided and when. If known, it also says who made the decision and why. Steps that were in
doubt are copied into the entry, because a decision can delete them.
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
from ..engine.stores.sealing import is_sealed, seal, unseal, unsealed
from ..exceptions import NotDecryptable

if TYPE_CHECKING:
    from ..models import IdempotencyKey, IdempotencyStep


SEALED = "sealed"
"""The name under which a trail's first entry holds the previous trail, if that could not be decrypted."""
RECORDED = frozenset({"record", "correct"})
"""The actions that give a step its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision that a person or a command has made about a key.

    Attributes:
        action: "release", "record", "correct", "answer" or "recover".
        at: the time in ISO 8601 format, with its UTC offset; default: now.
        by: the name of the user or the command.
        reason: the reason that the person gave.
        attempt: the attempt that the decision concerned.
        detail: the step that was recorded, or the status of the answer.
        steps: the steps that were in doubt at the time, each with its name, kind, attempt, keyed, started_at and error.
        replaced: the result that a "correct" action has replaced, in its stored form.
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
        """`at` as a `datetime`: aware if USE_TZ is True, otherwise naive."""
        at = datetime.fromisoformat(self.at).astimezone(timezone.get_default_timezone())
        return at if settings.USE_TZ else at.replace(tzinfo=None)


NAMES = {field.name for field in fields(Decision)}


def decisions_of(key: IdempotencyKey) -> list[Decision]:
    """Return the decisions about this key, oldest first. Runs no query. Raises `NotDecryptable`.

    Unknown fields are ignored. Some entries cannot be read, for example because a newer version of the package wrote
    them. Such an entry becomes a decision with the action "unreadable" and the time of the key's last change.
    """
    unreadable = Decision(action="unreadable", at=key.updated_at.isoformat(), by="?")
    return [
        Decision(**{name: entry[name] for name in NAMES & entry.keys()}) if _is_readable(entry) else unreadable
        for entry in _entries(key)
    ]


def correctable(key: IdempotencyKey) -> set[str]:
    """The steps whose results a person has recorded, or none if the decisions can't be decrypted."""
    try:
        return {decision.detail for decision in decisions_of(key) if decision.action in RECORDED}
    except NotDecryptable:
        return set()


def with_decision(row: IdempotencyKey, decision: Decision) -> str | None:
    """Return the new text for the `decisions` column, with this decision added.

    A trail whose encryption key is lost is kept unchanged as the first entry of the new trail.
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
    """Return a copy of a step in doubt, to be stored in the trail."""
    entry = {name: getattr(step, name) for name in ("name", "kind", "attempt", "keyed", "started_at")}
    return {**entry, "error": readable(row, "error", step.error, step.name)}


def readable(row: IdempotencyKey, column: str, stored: str | None, *step: str) -> str | None:
    """Decrypt text for the trail. If its encryption key is missing, the text stays encrypted, in case the key is found
    later. A decision is based on the called service's records, so it doesn't need the text.
    """
    return unsealed(row, column, stored, *step, instead=stored)


def _is_readable(entry: Any) -> bool:
    """Whether this version understands the entry. If not, the admin only notes that an entry exists."""
    try:
        steps = entry.get("steps", [])
        times = [entry["at"], *(step["started_at"] for step in steps)]
        texts = [entry["action"], entry.get("replaced") or "", *(entry.get(n, "") for n in ("by", "reason", "detail"))]
        texts += [text for s in steps for text in (s["name"], s["kind"], s["error"] or "", str(s["attempt"]))]
        return {*map(type, texts)} == {str} and all(1970 <= datetime.fromisoformat(at).year < 9999 for at in times)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _entries(row: IdempotencyKey) -> list[Any]:
    """All entries, including those that this version cannot read. Raises `NotDecryptable`."""
    text = unseal(row, "decisions", row.decisions)
    try:
        entries = json.loads(text or "[]")
    except (RecursionError, ValueError):
        entries = None
    if not isinstance(entries, list):
        raise NotDecryptable(
            f"The decisions about idempotency key {reference_of(row.key_hash)} cannot be read: the column 'decisions' "
            "is not a JSON list, so it was changed in the database. No decision can be added until it is repaired."
        )
    if entries and isinstance(entries[0], dict) and SEALED in entries[0]:
        with suppress(NotDecryptable):
            entries[:1] = json.loads(unseal(row, "decisions", entries[0][SEALED]) or "[]")
    return entries
