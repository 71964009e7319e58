"""The timeline of a key: its claim, its steps and the decisions about it, in chronological order.

Results and encrypted text can contain personal data, so the functions that show them take a `Shown`, which knows what
the current user may see.
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
    """An entry in the timeline. Each of the `facts` is a (label, HTML) pair; pairs without HTML are left out."""

    def __init__(self, at: datetime, title: Any, mark: Any = "", *facts: tuple[str, Any]) -> None:
        self.at, self.title, self.mark = at, title, mark
        self.time, self.facts = moment(at), [fact for fact in facts if fact[1]]


def timeline(key: Shown) -> SafeString:
    """The timeline as an HTML list, oldest first."""
    row = key.facts.row
    entries = [Entry(row.created_at, _("Claimed")), *(_step(key, step) for step in key.facts.steps), *_decisions(key)]
    if row.completed_at:
        entries.append(Entry(row.completed_at, _("Completed with status %(s)s") % {"s": row.status_code}))
    context = {"entries": sorted(entries, key=lambda entry: entry.at)}
    return render_to_string("admin/django_idempotency/idempotencykey/timeline.html", context)


def _step(key: Shown, step: IdempotencyStep) -> Entry:
    return Entry(
        step.started_at,
        step.name,
        _end(key.facts, step),
        (_("kind"), _("%(kind)s, attempt %(attempt)s") % _kind(step.kind, step.attempt)),
        (_("error"), readable_error(key.facts.row, "error", step.error, step.name, allowed=key.secrets)),
        (_("derived key"), _derived(key.facts.row, step.name, step.kind, keyed=step.keyed)),
        (_("result"), result_of(key, step)),
    )


def _kind(kind: str, attempt: Any) -> dict[str, Any]:
    return {"kind": dict(Kind.choices).get(kind, kind), "attempt": attempt}


def _derived(row: IdempotencyKey, step: str, kind: str, *, keyed: bool | None) -> SafeString | str:
    """A call's derived key, if the view requested this key before every start of the call. Otherwise the gateway may
    never have seen it, and a person who looks for it there could wrongly conclude that the call did not happen.

    Args:
        keyed: whether the view requested the key before every start; None if this is unknown, because an earlier
            version wrote the entry in the trail.
    """
    if kind != Kind.CALL or keyed is None:
        return ""
    if not keyed:
        return _("none: the view did not ask for one before this call")
    identity = identify(scope=row.scope, operation=row.operation, key=row.key, stored=True)
    return copyable(derived_key(identity, step, get_settings().namespace))


def doubts_of(key: Shown) -> list[tuple[str, SafeString | str]]:
    """The steps in doubt, each with the derived key by which the called service may know it, if there is one."""
    return [(step.name, _derived(key.facts.row, step.name, step.kind, keyed=step.keyed)) for step in key.facts.doubts]


def sent_keys(facts: Facts) -> list[str]:
    """The derived keys of the calls, to compare with the gateway's records. Only calls whose key the view requested
    before every start are included.
    """
    row, namespace = facts.row, get_settings().namespace
    identity = identify(scope=row.scope, operation=row.operation, key=row.key, stored=True)
    return [
        derived_key(identity, step.name, namespace) for step in facts.steps if step.kind == Kind.CALL and step.keyed
    ]


def copyable(text: str) -> SafeString:
    """The text with a copy button; the button stays hidden unless the admin pages' script runs."""
    button = '<button type="button" class="idempotency-copy" data-copy="{}" data-copied="{}" hidden>{}</button>'
    return format_html("<code>{}</code> " + button, text, text, _("Copied"), _("Copy"))


def _end(facts: Facts, step: IdempotencyStep) -> SafeString | str:
    if step.finished_at is not None and step.name in facts.recordable and step.name not in facts.lost:
        return _("recorded by a person")
    if step.finished_at is not None:
        seconds = (step.finished_at - step.started_at).total_seconds()
        return _("finished after %(seconds).3f s") % {"seconds": seconds}
    if facts.live:
        return _("running")
    return badge("in_doubt") if facts.idle else _("no result")


def result_of(key: Shown, step: IdempotencyStep) -> SafeString | str:
    """The result of a finished step as JSON to paste into a form, or the reason why it cannot be shown.

    It is empty for an unfinished step, and for users who aren't allowed to see secrets.
    """
    return "" if step.finished_at is None else _result(key, step.result, step.name)


def _result(key: Shown, stored: str | None, step: str) -> SafeString | str:
    if not key.secrets:
        return ""
    try:
        return pasteable(unseal(key.facts.row, "result", stored, step))
    except NotDecryptable as error:
        return str(error)


def results_of(key: Shown) -> list[tuple[str, SafeString | str]]:
    """The finished steps with their results, to help a person make a decision."""
    return [(step.name, result_of(key, step)) for step in key.facts.steps if step.finished_at is not None]


def pasteable(result: str | None) -> SafeString | str:
    """A stored result as JSON to paste into a form."""
    if result is None:
        return _("Finished, but the result could not be stored.")
    try:
        text = as_utf8(value_text(result))
    except (RecursionError, ValueError):
        return _("This result cannot be read.")
    return format_html('<pre class="idempotency-body">{}</pre>', cut(text))


def value_text(result: str) -> str:
    """The JSON of a stored result: for a model instance, its model, primary key and alias.

    Raises `ValueError` for invalid JSON.
    """
    value = json.loads(result)
    return json.dumps(value.get("value", value) if isinstance(value, dict) else value, ensure_ascii=False)


def last_decision(key: Shown) -> str:
    """The last decision: who made it, what it was, when and why.

    It is empty if there is no decision, and explains why if the decision cannot be shown.
    """
    made, hidden = _trail(key)
    if not made:
        return hidden
    values = {"decided": decided(made[-1]), "time": moment(made[-1].moment), "why": made[-1].reason}
    return encodable(_("%(decided)s, %(time)s. Reason: %(why)s") % values)


def _trail(key: Shown) -> tuple[list[Decision], str]:
    """The decisions about a key, or an empty list and the reason why they cannot be shown."""
    if is_sealed(key.facts.row.decisions) and not key.secrets:
        return [], str(ENCRYPTED)
    try:
        return decisions_of(key.facts.row), ""
    except NotDecryptable as error:
        return [], str(error)


def _decisions(key: Shown) -> Iterator[Entry]:
    decisions, hidden = _trail(key)
    if hidden:
        yield Entry(key.facts.row.updated_at, _("Decisions"), hidden)
    for made in decisions:
        yield Entry(
            made.moment,
            encodable(decided(made)),
            "",
            (_("reason"), encodable(made.reason)),
            *((_("in doubt then"), _past_doubt(key.facts.row, step)) for step in made.steps),
            # A replaced result is still sealed if no encryption key could decrypt it at the time of the decision.
            (_("replaced result"), _result(key, made.replaced, made.detail) if made.replaced else ""),
        )


def decided(made: Decision) -> str:
    """A sentence that says who decided what."""
    texts = {
        "release": _("%(by)s released the key for a retry"),
        "record": _("%(by)s recorded the result of “%(detail)s”"),
        "correct": _("%(by)s corrected the result of “%(detail)s”"),
        "answer": _("%(by)s closed the key with status %(detail)s"),
        "fail": _("%(by)s ended the attempt"),
        "recover": _("%(by)s: %(detail)s"),
    }
    # A newer release may have stored an action that is not listed here.
    text = texts.get(made.action, "%(by)s: " + made.action.replace("%", "%%") + " %(detail)s")
    return text % {"by": made.by or _("a script"), "detail": made.detail}


def _past_doubt(row: IdempotencyKey, step: dict[str, Any]) -> SafeString:
    """A step that was in doubt when a decision was made, as the trail recorded it.

    The decision may have deleted the step itself.
    """
    started = moment(datetime.fromisoformat(step["started_at"]))
    values = {"name": encodable(step["name"]), **_kind(step["kind"], step["attempt"]), "time": started}
    what = _("%(name)s (%(kind)s, attempt %(attempt)s), started %(time)s") % values
    error = readable_error(row, "error", step["error"], step["name"], allowed=True)
    derived = _derived(row, step["name"], step["kind"], keyed=step.get("keyed"))
    return format_html("{}<br>{} {}", what, encodable(error), derived)
