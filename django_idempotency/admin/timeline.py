"""This module makes the timeline of a key: its claim, its steps, and the decisions of people, sorted by time.

Stored results and encrypted texts can contain personal data. So the functions that show these texts need a `Shown`
object. A `Shown` object says what the current user may see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..engine.conf import get_settings
from ..engine.protocol.digests import derived_key, identify
from ..engine.stores.sealing import is_sealed, unseal
from ..exceptions import NotDecryptable
from ..maintenance.decisions import Decision, decisions_of
from ..maintenance.facts import Facts
from ..models import IdempotencyKey, IdempotencyStep
from .links import Shown
from .texts import ENCRYPTED, as_utf8, badge, cut, encodable, moment, readable_error

Kind = IdempotencyStep.Kind


class Entry:
    """An `Entry` object is one line of the timeline.

    Each item of the argument `facts` is a pair: a label, and the HTML to show after the label. If the HTML of an item
    is empty, the page does not show the item.
    """

    def __init__(self, at: datetime, title: Any, mark: Any = "", *facts: tuple[str, Any]) -> None:
        self.at, self.title, self.mark = at, title, mark
        self.time, self.facts = moment(at), [fact for fact in facts if fact[1]]


def timeline(key: Shown) -> SafeString:
    """Return the timeline as an HTML list in which the oldest entry comes first."""
    row = key.row
    entries = [Entry(row.created_at, _("Claimed")), *(_step(key, step) for step in key.steps), *_decisions(key)]
    if row.completed_at:
        entries.append(Entry(row.completed_at, _("Completed with status %(s)s") % {"s": row.status_code}))
    context = {"entries": sorted(entries, key=lambda entry: entry.at)}
    return render_to_string("admin/django_idempotency/idempotencykey/timeline.html", context)


def _step(key: Shown, step: IdempotencyStep) -> Entry:
    return Entry(
        step.started_at,
        step.name,
        _end(key, step),
        (_("kind"), _("%(kind)s, attempt %(attempt)s") % _kind(step.kind, step.attempt)),
        (_("error"), readable_error(key.row, "error", step.error, step.name, allowed=key.secrets)),
        (_("derived key"), _derived(key.row, step.name, step.kind, keyed=step.keyed)),
        (_("result"), result_of(key, step)),
    )


def _kind(kind: str, attempt: Any) -> dict[str, Any]:
    return {"kind": dict(Kind.choices).get(kind, kind), "attempt": attempt}


def _derived(row: IdempotencyKey, step: str, kind: str, *, keyed: bool | None) -> SafeString | str:
    """Return the derived key of a call, if the view had asked for it before each start of the call. Otherwise no
    gateway has seen it, and a person who looks for it there would believe that the call did not happen.

    Args:
        keyed: None if it is not known, because an earlier version has written the entry of the trail.
    """
    if kind != Kind.CALL or keyed is None:
        return ""
    if not keyed:
        return _("none: the view had not asked for one before this call")
    identity = identify(scope=row.scope, operation=row.operation, key=row.key, stored=True)
    return copyable(derived_key(identity, step, get_settings().namespace))


def doubts_of(key: Shown) -> list[tuple[str, SafeString | str]]:
    """Return the name and the derived key of each step in doubt. Perhaps the external service knows the derived key."""
    return [(step.name, _derived(key.row, step.name, step.kind, keyed=step.keyed)) for step in key.doubts]


def sent_keys(key: Facts) -> list[str]:
    """Return the derived keys of the calls in doubt, where the view had asked for them."""
    row, namespace = key.row, get_settings().namespace
    identity = identify(scope=row.scope, operation=row.operation, key=row.key, stored=True)
    return [derived_key(identity, step.name, namespace) for step in key.doubts if step.keyed]


def copyable(text: str) -> SafeString:
    """Return HTML for a text and for a button that copies this text.

    If the browser does not run the script of the admin pages, the button stays hidden.
    """
    button = '<button type="button" class="idempotency-copy" data-copy="{}" data-copied="{}" hidden>{}</button>'
    return format_html("<code>{}</code> " + button, text, text, _("Copied"), _("Copy"))


def _end(facts: Facts, step: IdempotencyStep) -> SafeString | str:
    if step.finished_at is not None and step.name in facts.recordable:
        return _("recorded by a person")
    if step.finished_at is not None:
        seconds = (step.finished_at - step.started_at).total_seconds()
        return _("done after %(seconds).3f s") % {"seconds": seconds}
    if facts.live:
        return _("running")
    return badge("in_doubt") if facts.idle else _("no result")


def result_of(key: Shown, step: IdempotencyStep) -> SafeString | str:
    """Return the result of a finished step as JSON that a person can paste into a form.

    If the page cannot show the result, the function returns a text that says why. If the step is not finished, or if
    the person is not allowed to see secrets, the function returns an empty text.
    """
    if step.finished_at is None or not key.secrets:
        return ""
    try:
        return pasteable(unseal(key.row, "result", step.result, step.name))
    except NotDecryptable as error:
        return str(error)


def results_of(key: Shown) -> list[tuple[str, SafeString | str]]:
    """Return the name and the result of each finished step. A person needs the results to make a decision."""
    return [(step.name, result_of(key, step)) for step in key.steps if step.finished_at is not None]


def pasteable(kept: str | None) -> SafeString | str:
    """Return a stored result as JSON that a person can paste into a form."""
    if kept is None:
        return _("Done, but the result could not be stored.")
    try:
        text = as_utf8(value_text(kept))
    except (RecursionError, ValueError):
        return _("This result cannot be read.")
    return format_html('<pre class="idempotency-body">{}</pre>', cut(text))


def value_text(kept: str) -> str:
    """Return the JSON of a stored result. Raises `ValueError` for invalid JSON.

    For a model instance, the JSON has the model, the primary key and the database alias.
    """
    value = json.loads(kept)
    return json.dumps(value.get("value", value) if isinstance(value, dict) else value, ensure_ascii=False)


def last_decision(key: Shown) -> str:
    """Return a text that shows the last decision, its time, its reason, and the person who made this decision.

    If the key has no decisions, the text is empty. If the page cannot show the decisions, the text says why.
    """
    made, hidden = _trail(key)
    if not made:
        return hidden
    values = {"decided": decided(made[-1]), "time": moment(made[-1].moment), "why": made[-1].reason}
    return encodable(_("%(decided)s, %(time)s. Reason: %(why)s") % values)


def _trail(key: Shown) -> tuple[list[Decision], str]:
    """Return two things: a list of the decisions about a key, and a message for the page.

    If the page cannot show the decisions, the list is empty, and the message says why. Otherwise, the message is empty.
    """
    if is_sealed(key.row.decisions) and not key.secrets:
        return [], str(ENCRYPTED)
    try:
        return decisions_of(key.row), ""
    except NotDecryptable as error:
        return [], str(error)


def _decisions(key: Shown) -> Iterator[Entry]:
    decisions, hidden = _trail(key)
    if hidden:
        yield Entry(key.row.updated_at, _("Decisions"), hidden)
    for made in decisions:
        yield Entry(
            made.moment,
            encodable(decided(made)),
            "",
            (_("reason"), encodable(made.reason)),
            *((_("in doubt then"), _past_doubt(key.row, step)) for step in made.steps),
            (_("replaced result"), pasteable(made.replaced) if made.replaced and key.secrets else ""),
        )


def decided(made: Decision) -> str:
    """Return one sentence that says which person made the decision, and what the person decided."""
    texts = {
        "release": _("%(by)s released the key for a retry"),
        "record": _("%(by)s recorded the result of “%(detail)s”"),
        "correct": _("%(by)s corrected the result of “%(detail)s”"),
        "answer": _("%(by)s answered by hand with status %(detail)s"),
        "fail": _("%(by)s ended the attempt"),
        "recover": _("%(by)s: %(detail)s"),
    }
    # A newer release of this package can store a new kind of action. If an action is missing in the dict `texts`, the
    # sentence shows the stored name of the action.
    text = texts.get(made.action, "%(by)s: " + made.action.replace("%", "%%") + " %(detail)s")
    return text % {"by": made.by or _("a script"), "detail": made.detail}


def _past_doubt(row: IdempotencyKey, step: dict[str, Any]) -> SafeString:
    """Return HTML for a step that was in doubt when a person made a decision.

    A decision can delete the step from the table. So the stored decision has a copy of the step, and this function
    reads the copy.
    """
    started = moment(datetime.fromisoformat(step["started_at"]))
    values = {"name": encodable(step["name"]), **_kind(step["kind"], step["attempt"]), "time": started}
    what = _("%(name)s (%(kind)s, attempt %(attempt)s), started %(time)s") % values
    error = readable_error(row, "error", step["error"], step["name"], allowed=True)
    derived = _derived(row, step["name"], step["kind"], keyed=step.get("keyed"))
    return format_html("{}<br>{} {}", what, encodable(error), derived)
