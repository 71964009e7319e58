"""A key in words: what happened, what is certain, what is not, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _

from ..engine.stores.states import ATTENTION
from ..maintenance.facts import Facts, Kind
from ..models import IdempotencyKey
from .texts import moment

RETRY = IdempotencyKey.Policy.RETRY


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The answers to what a person on call asks first. Each is some short sentences; `uncertain` may be empty."""

    happened: str
    certain: str
    uncertain: str
    without_decision: str
    next_retry: str
    to_do: str


def story_of(facts: Facts) -> Story:
    return Story(
        happened=_happened(facts),
        certain=_certain(facts),
        uncertain=_uncertain(facts),
        without_decision=_without_decision(facts),
        next_retry=_next_retry(facts),
        to_do=to_do(facts),
    )


def to_do(facts: Facts) -> str:
    """Return what a person should do about this key. A worker that is only slow can still make its call."""
    if not facts.abandoned or not facts.row.worker:
        return str(facts.state.to_do)
    dead = _("First make sure that the worker %(worker)s (host:process) is dead, and not only slow.")
    return f"{dead % {'worker': facts.row.worker}} {facts.state.to_do}"


def expiry(facts: Facts) -> str:
    """Return when the key expires, in words where that is not a time."""
    if facts.live:
        return _("never, while it is in progress")
    if facts.state not in ATTENTION:
        return moment(facts.row.expires_at)
    return _("never, while it needs attention")


def _happened(facts: Facts) -> str:
    row = facts.row
    values = {"attempt": row.attempt, "time": moment(row.locked_until), "status": row.status_code}
    if facts.state.name == "completed":
        return _("The operation has ended with status %(status)s.") % values
    if facts.live:
        return _("A worker is at work on attempt %(attempt)s. It holds the lease until %(time)s.") % values
    if facts.unleased:
        return _("The view ended its own transaction and did not come to its end.")
    if facts.failed:
        return _("Attempt %(attempt)s ended without a final response.") % values
    return _("The worker of attempt %(attempt)s has died or is too slow: its lease was over at %(time)s.") % values


def _certain(facts: Facts) -> str:
    if facts.finished:
        return _("These steps have ended: %(names)s.") % {"names": _names(facts.finished)}
    if facts.state.name == "completed":
        return _("The response is kept.")
    if facts.unleased:
        return _("What the view wrote before the end of its transaction is kept.")
    if facts.in_doubt:
        return _("No step has a result.")
    return _("No step was started: nothing has happened outside.")


def _uncertain(facts: Facts) -> str:
    names = {"names": _names(facts.in_doubt)}
    if facts.write_in_doubt:
        return _("Whether these steps took effect: %(names)s. A write ended its own transaction in the middle.") % names
    if facts.in_doubt:
        return _(
            "Whether these calls took effect: %(names)s. They were started and have no result. The other side knows a "
            "call by its derived key only if the view has sent that key; else by your reference, the amount and the "
            "time."
        ) % (names)
    if facts.unleased:
        return _("Which part of its work the view has done.")
    return _missing(facts) if facts.state.name == "half_done" else ""


def _missing(facts: Facts) -> str:
    """What is missing, and not what is usually missing. Only the view knows whether more steps would follow."""
    written = [step.name for step in facts.steps if step.kind == Kind.WRITE and step.finished_at is not None]
    if not written:
        return _("Nothing. But no local write has ended: what belongs to these calls is missing, such as an order.")
    return _(
        "Nothing. The local writes have ended, too: %(names)s. If no step follows, only the answer is missing."
    ) % {"names": _names(written)}


def _without_decision(facts: Facts) -> str:
    values = {"expiry": expiry(facts)}
    if facts.unleased:
        return _("The key stays as it is, and retries are refused. Expires: %(expiry)s.") % values
    if facts.state.name == "in_doubt":
        return _("The doubt stays: a charge without an order, or an order without a charge. Expires: %(expiry)s.") % (
            values
        )
    if facts.state.name == "half_done":
        return _("The work stays half done, if no retry comes. Expires: %(expiry)s.") % values
    if facts.state.name == "stuck":
        return _("No harm is done: the request did not run to its end, and no call was made.")
    if facts.live:
        return _("The worker ends, or a retry takes the key over after the lease.")
    return _("The key expires at %(expiry)s. Then a request with it runs as a new one.") % values


def _next_retry(facts: Facts) -> str:
    if facts.state.name == "completed":
        if facts.row.body is None:
            return _(
                "It is told that the operation has ended, and that the response was not stored. Nothing runs again."
            )
        return _("It gets the kept response. Nothing runs again.")
    if facts.live:
        return _("A retry is told that the request is still being processed.")
    if facts.unleased or facts.write_in_doubt:
        return _("It is refused with 409. A person has to decide.")
    if facts.in_doubt and facts.row.policy == RETRY:
        return _(
            "The view runs again, and makes the calls in doubt again with the same derived keys. If the view has a "
            "reconcile function, the function is asked first."
        )
    if facts.in_doubt:  # what has no policy is never made again
        return _(
            "It is refused with 409, and no call is made again. If the view has a reconcile function, the function is "
            "asked first."
        )
    if facts.finished:
        return _("The view runs again. Steps that have ended are not repeated; the view gets their results.")
    return _("The view runs again.")


def _names(names: list[str]) -> str:
    return ", ".join(names)
