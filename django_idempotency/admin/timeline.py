"""All that ever happened under a key, in the order of time: its claim, its steps, and what people have decided."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..engine.protocol.digests import derived_key, stored_identity
from ..engine.stores.sealing import is_sealed
from ..exceptions import NotDecryptable
from ..maintenance.decisions import Decision, decisions_of
from ..models import IdempotencyKey, IdempotencyStep
from .badges import badge
from .bodies import as_utf8, encodable, readable_json
from .facts import Facts, facts_of
from .sealed import ENCRYPTED, readable, readable_error
from .texts import moment

Kind = IdempotencyStep.Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the timeline. `facts` are pairs of a word and its HTML."""

    at: datetime
    title: Any
    mark: Any = ""
    facts: list[tuple[str, Any]] = field(default_factory=list)


def timeline(obj: IdempotencyKey, *, results: bool) -> SafeString:
    """Return what happened as a list, the oldest first.

    Args:
        obj: the key.
        results: whether to show the results of the steps, and what is encrypted. Both may hold personal data.
    """
    facts = facts_of(obj)
    entries = [
        Entry(at=obj.created_at, title=_("Claimed")),
        *(_step(facts, step, results=results) for step in facts.steps),
        *_decisions(obj, results=results),
    ]
    if obj.completed_at:
        entries.append(Entry(at=obj.completed_at, title=_("Completed with status %(s)s") % {"s": obj.status_code}))
    items = (
        (moment(entry.at), entry.title, entry.mark, _facts(entry)) for entry in sorted(entries, key=lambda e: e.at)
    )
    lines = format_html_join("", "<li><time>{}</time> <strong>{}</strong> {}{}</li>", items)
    return format_html('<ol class="idempotency-timeline">{}</ol>', lines)


def _facts(entry: Entry) -> SafeString | str:
    shown = [(word, value) for word, value in entry.facts if value]
    pairs = format_html_join("", "<div><dt>{}</dt><dd>{}</dd></div>", shown)
    return format_html("<dl>{}</dl>", pairs) if shown else ""


def _step(facts: Facts, step: IdempotencyStep, *, results: bool) -> Entry:
    row = facts.row
    return Entry(
        at=step.started_at,
        title=step.name,
        mark=_end(facts, step),
        facts=[
            (_("kind"), _("%(kind)s, attempt %(attempt)s") % _kind(step.kind, step.attempt)),
            (_("error"), readable_error(row, "error", step.error, step.name, allowed=results)),
            (_("derived key"), "" if step.kind == Kind.WRITE else copyable(_derived(row, step.name))),
            (_("result"), _result(row, step) if results else ""),
        ],
    )


def _kind(kind: str, attempt: Any) -> dict[str, Any]:
    return {"kind": Kind(kind).label, "attempt": attempt}


def _derived(row: IdempotencyKey, step: str) -> str:
    return derived_key(stored_identity(scope=row.scope, operation=row.operation, key=row.key), step)


def copyable(text: str) -> SafeString:
    """Return a text with a button that copies the text. The script of these pages shows the button."""
    button = '<button type="button" class="idempotency-copy" data-copy="{}" data-copied="{}" hidden>{}</button>'
    return format_html("<code>{}</code> " + button, text, text, _("Copied"), _("Copy"))


def _end(facts: Facts, step: IdempotencyStep) -> SafeString | str:
    if step.finished_at is not None:
        seconds = (step.finished_at - step.started_at).total_seconds()
        return _("done after %(seconds).3f s") % {"seconds": seconds}
    if facts.live:
        return _("running")
    return badge("in_doubt") if facts.resolvable else _("no result")


def _result(row: IdempotencyKey, step: IdempotencyStep) -> SafeString | str:
    if step.finished_at is None:
        return ""
    try:
        return pasteable(readable(row, "result", step.result, step.name))
    except ValueError:  # the reason why it cannot be decrypted
        return readable(row, "result", step.result, step.name) or ""


def pasteable(kept: str | None) -> SafeString | str:
    """Return the result as the value that a person would paste into a form. Raises `ValueError` for other texts."""
    if kept is None:
        return _("Done, but the result could not be stored.")
    return format_html('<pre class="idempotency-body">{}</pre>', readable_json(as_utf8(value_text(kept))))


def value_text(kept: str) -> str:
    """Return the JSON of the value in a kept result; of a model instance, what names it. Raises `ValueError`."""
    value = json.loads(kept)
    return json.dumps(value.get("value", value), ensure_ascii=False)


def last_decision(obj: IdempotencyKey, *, results: bool) -> str:
    """Return who has decided what, when and why at last. Empty if there was no decision. Arguments as of `timeline`."""
    made, hidden = _trail(obj, results=results)
    if not made:
        return hidden
    values = {"decided": decided(made[-1]), "time": moment(made[-1].moment), "why": made[-1].reason}
    return encodable(_("%(decided)s, %(time)s. Reason: %(why)s") % values)


def _trail(obj: IdempotencyKey, *, results: bool) -> tuple[list[Decision], str]:
    """The decisions, or why they cannot be shown."""
    if is_sealed(obj.decisions) and not results:
        return [], str(ENCRYPTED)
    try:
        return decisions_of(obj), ""
    except NotDecryptable as error:
        return [], str(error)


def _decisions(obj: IdempotencyKey, *, results: bool) -> Iterator[Entry]:
    decisions, hidden = _trail(obj, results=results)
    if hidden:
        yield Entry(at=obj.updated_at or obj.created_at, title=_("Decisions"), mark=hidden)
    for made in decisions:
        yield Entry(
            at=made.moment,
            title=encodable(decided(made)),
            facts=[
                (_("reason"), encodable(made.reason)),
                *((_("in doubt then"), _past_doubt(obj, step)) for step in made.steps),
                (_("replaced result"), pasteable(made.replaced) if made.replaced and results else ""),
            ],
        )


def decided(made: Decision) -> str:
    """Return who decided what, in one sentence."""
    texts = {
        "release": _("%(by)s released the key for a retry"),
        "record": _("%(by)s recorded the result of “%(detail)s”"),
        "correct": _("%(by)s corrected the result of “%(detail)s”"),
        "answer": _("%(by)s answered by hand with status %(detail)s"),
        "fail": _("%(by)s ended the attempt"),
        "recover": _("%(by)s: %(detail)s"),
    }
    # Another release may know more actions.
    text = texts.get(made.action, "%(by)s: " + made.action.replace("%", "%%") + " %(detail)s")
    return text % {"by": made.by or _("a script"), "detail": made.detail}


def _past_doubt(obj: IdempotencyKey, step: dict[str, Any]) -> SafeString:
    """A step that a decision may have deleted: nothing that was in doubt disappears from view."""
    name = str(step["name"])
    started = moment(datetime.fromisoformat(str(step["started_at"])))
    what = _("%(name)s (%(kind)s, attempt %(attempt)s), started %(time)s") % {
        "name": encodable(name),
        **_kind(step["kind"], step["attempt"]),
        "time": started,
    }
    derived = "" if step["kind"] == Kind.WRITE else copyable(_derived(obj, name))
    return format_html("{}<br>{} {}", what, encodable(str(step["error"] or "")), derived)
