"""A key in words: what happened, what is certain, what is not, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _

from ..models import IdempotencyKey
from .facts import Facts, expiry
from .texts import moment

HOLD = IdempotencyKey.Policy.HOLD
RETRY = IdempotencyKey.Policy.RETRY


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The answers to what a person on call asks first. Each is one or two sentences; `uncertain` may be empty."""

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
        to_do=to_do(facts.state, unleased=facts.unleased),
    )


def to_do(state: str, *, unleased: bool = False) -> str:
    """Return what a person should do about a key in this state. Empty if nothing."""
    if state == "in_doubt":
        return _("Look the call up in the other side's books by its derived key. Then record what you have found.")
    if state == "half_done":
        return _("Ask the client to retry. If the client has given up, finish or undo the work, then answer by hand.")
    if unleased:
        return _("Check what the view has written. Finish it and answer by hand, or undo it and release the key.")
    if state == "stuck":
        return _("Ask the client to retry. Nothing has happened outside.")
    return ""


def _happened(facts: Facts) -> str:
    row = facts.row
    values = {"attempt": row.attempt, "time": moment(row.locked_until), "status": row.status_code}
    if facts.state == "completed":
        return _("The operation has ended with status %(status)s.") % values
    if facts.live:
        return _("A worker is at work on attempt %(attempt)s. It holds the lease until %(time)s.") % values
    if facts.unleased:
        return _("The view ended its own transaction and did not come to its end.")
    if row.status == IdempotencyKey.Status.FAILED:
        return _("Attempt %(attempt)s ended without a final response.") % values
    return _("The worker of attempt %(attempt)s has died or is too slow: its lease was over at %(time)s.") % values


def _certain(facts: Facts) -> str:
    if facts.finished:
        return _("These steps have ended: %(names)s.") % {"names": _names(facts.finished)}
    if facts.state == "completed":
        return _("The response is kept.")
    if facts.unleased:
        return _("What the view wrote before the end of its transaction is kept.")
    if facts.doubts:
        return _("No step has a result.")
    return _("No step was started: nothing has happened outside.")


def _uncertain(facts: Facts) -> str:
    names = {"names": _names(facts.doubts)}
    if facts.write_in_doubt:
        return _("Whether these steps took effect: %(names)s. A write ended its own transaction in the middle.") % names
    if facts.doubts:
        return _("Whether these calls took effect: %(names)s. They were started and have no result.") % names
    if facts.unleased:
        return _("Which part of its work the view has done.")
    if facts.state == "half_done":
        return _("Nothing. But the rest of the work is missing, such as the order of a charge.")
    return ""


def _without_decision(facts: Facts) -> str:
    values = {"expiry": expiry(facts)}
    if facts.state == "in_doubt":
        return _("The doubt stays: a charge without an order, or an order without a charge. Expires: %(expiry)s.") % (
            values
        )
    if facts.state == "half_done":
        return _("The work stays half done, if no retry comes. Expires: %(expiry)s.") % values
    if facts.unleased:
        return _("The key stays as it is, and retries are refused. Expires: %(expiry)s.") % values
    if facts.state == "stuck":
        return _("No harm is done: the request did not run to its end, and no call was made.")
    if facts.live:
        return _("The worker ends, or a retry takes the key over after the lease.")
    return _("The key expires at %(expiry)s. Then a request with it runs as a new one.") % values


def _next_retry(facts: Facts) -> str:
    if facts.state == "completed":
        return _response_of_a_retry(facts)
    if facts.live:
        return _("A retry is told that the request is still being processed.")
    if facts.unleased or facts.write_in_doubt:
        return _("It is refused with 409. A person has to decide.")
    if facts.doubts:
        return _retry_in_doubt(facts.row.policy)
    if facts.finished:
        return _("The view runs again. Steps that have ended are not repeated; the view gets their results.")
    return _("The view runs again.")


def _retry_in_doubt(policy: str | None) -> str:
    if policy == HOLD:
        return _(
            "It is refused with 409, and no call is made again. If the view has a reconcile function, the function is "
            "asked first."
        )
    if policy == RETRY:
        return _(
            "The view runs again, and makes the calls in doubt again with the same derived keys. If the view has a "
            "reconcile function, the function is asked first."
        )
    return _("The view's policy decides. The key is of an older version, which did not keep the policy.")


def _response_of_a_retry(facts: Facts) -> str:
    if facts.row.body is None:
        return _("It is told that the operation has ended, and that the response was not stored. Nothing runs again.")
    return _("It gets the kept response. Nothing runs again.")


def _names(names: list[str]) -> str:
    return ", ".join(names)
