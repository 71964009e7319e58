"""The text on a key's page: what has happened to the key, what is certain, what is not, and what comes next."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.stores.states import ATTENTION, EXPIRED
from ..maintenance.facts import Facts, Kind
from ..models import IdempotencyKey
from .texts import moment

Policy = IdempotencyKey.Policy
WITHOUT_DECISION = {
    "in_doubt": gettext_lazy(
        "The doubt remains: a charge without an order, or an order without a charge. Expires: %(expiry)s."
    ),
    "half_done": gettext_lazy("The work stays half done unless a retry comes. Expires: %(expiry)s."),
    "stuck": gettext_lazy("No harm done: the request failed before it made any call."),
    "in_flight": gettext_lazy("The worker finishes, or a retry takes over once the lease has expired."),
}


def story_of(facts: Facts) -> dict[str, str]:
    """Answer an operator's questions about a key, each with a few short sentences or an empty string."""
    return {tell.__name__: tell(facts) for tell in (happened, certain, uncertain, without_decision, next_retry, to_do)}


def happened(facts: Facts) -> str:
    row = facts.row
    values = {"attempt": row.attempt, "time": moment(row.locked_until), "status": row.status_code}
    if facts.state.name == "completed":
        return _("The operation finished with status %(status)s.") % values
    if facts.live:
        return _("A worker is on attempt %(attempt)s. Its lease runs until %(time)s.") % values
    if facts.unleased:
        return _("The view ended its own transaction, then failed or died.")
    if row.status == IdempotencyKey.Status.FAILED:
        return _("Attempt %(attempt)s ended without a final response.") % values
    return _("The worker on attempt %(attempt)s has died or is too slow: its lease expired at %(time)s.") % values


def certain(facts: Facts) -> str:
    if facts.finished:
        return _("These steps finished: %(names)s.") % {"names": ", ".join(facts.finished)}
    if facts.state.name == "completed":
        return _("The response is stored.")
    if facts.unleased:
        return _("Whatever the view wrote before its transaction ended is committed.")
    if facts.steps:
        return _("No step has a result.")
    if facts.row.decisions:
        return _("No step is recorded. Steps that were in doubt may have been deleted by a decision: see the timeline.")
    return _("No step was started, so nothing has happened outside.")


def uncertain(facts: Facts) -> str:
    names = {"names": ", ".join(facts.in_doubt)}
    if facts.write_in_doubt:
        return _("Whether these steps took effect: %(names)s. A write ended its own transaction halfway through.") % (
            names
        )
    if facts.in_doubt:
        return _(
            "Whether these calls took effect: %(names)s. They were started, but have no result. The called service "
            "knows a call by its derived key only if the view sent that key; otherwise look for your reference, "
            "the amount and the time."
        ) % (names)
    if facts.unleased:
        return _("How much of its work the view has done.")
    if facts.lost:
        return _("Nothing, but what these calls returned was lost: %(names)s. Look it up and enter it.") % {
            "names": ", ".join(facts.lost)
        }
    return _missing(facts) if facts.state.name == "half_done" else ""


def _missing(facts: Facts) -> str:
    """Say what may be missing even though all started steps have finished.

    The view might have gone on to start more steps.
    """
    written = [step.name for step in facts.steps if step.kind == Kind.WRITE and step.finished_at is not None]
    if not written:
        return _("Nothing, but no local write finished: what belongs to these calls, such as an order, is missing.")
    return _(
        "Nothing. The local writes finished, too: %(names)s. Unless a step follows, only the response is missing."
    ) % {"names": ", ".join(written)}


def without_decision(facts: Facts) -> str:
    text = WITHOUT_DECISION.get(facts.state.name) or _(
        "The key expires at %(expiry)s. After that, a request with it counts as new."
    )
    if facts.expired:
        text = _("The key expired at %(expiry)s. The next cleanup deletes it.")
    if facts.unleased:
        text = _("The key stays as it is, and retries are refused. Expires: %(expiry)s.")
    never = facts.state in ATTENTION
    expiry = _("never, while it needs attention") if never else moment(facts.row.expires_at)
    return text % {"expiry": expiry}


def next_retry(facts: Facts) -> str:
    if facts.expired:  # a claim checks for expiry first, and then ignores everything that is stored
        return _(
            "Everything runs again, calls and writes included: the key has expired, so a request with it counts "
            'as new. Only an endpoint with late_keys="refuse" refuses it.'
        )
    if facts.unreadable:
        return _("It fails with status 500, because what is stored cannot be decrypted. Nothing runs again.")
    if facts.state.name == "completed" and facts.row.body is not None:
        return _("It gets the stored response. Nothing runs again.")
    if facts.state.name == "completed":
        return _("It is told that the operation finished, but that its response was not stored. Nothing runs again.")
    if facts.live:
        return _("It is told that the request is still being processed.")
    if facts.unleased or facts.write_in_doubt:
        return _("It is refused with 409 until a person decides.")
    if facts.in_doubt:
        return _after_doubt(facts)
    return _after_steps(facts)


def _after_steps(facts: Facts) -> str:
    if facts.lost:
        return _("The view runs again, and fails as soon as it asks for %(names)s. Enter the lost value first.") % {
            "names": ", ".join(facts.lost)
        }
    if facts.finished:
        return _("The view runs again. Finished steps are not repeated; the view gets their stored results.")
    return _("The view runs again.")


def _after_doubt(facts: Facts) -> str:
    keyed = facts.row.policy == Policy.RETRY_KEYED
    if keyed and facts.unkeyed:
        return _(
            "It is refused with 409, because the called service could not recognize a repeated call of %(names)s. "
            "If the view has a reconcile function, that is asked first. In future, let the view ask for "
            'operation.derive_key(…) before the call and send it along, or pass on_abandoned="retry" if making the '
            "call twice is harmless."
        ) % {"names": ", ".join(facts.unkeyed)}
    if facts.row.policy == Policy.RETRY and facts.unkeyed:
        return _(
            "The view runs again and repeats the calls in doubt. The called service may not recognize a repeated "
            "call of %(names)s: the view had not asked for a derived key before it, or asked so long ago that the "
            "key may be forgotten by now. If the view has a reconcile function, that is asked first."
        ) % {"names": ", ".join(facts.unkeyed)}
    if keyed or facts.row.policy == Policy.RETRY:
        return _(
            "The view runs again and repeats the calls in doubt, with the same derived keys. If the view has a "
            "reconcile function, that is asked first."
        )
    return _(  # a missing policy counts as "hold"
        "It is refused with 409, and no call is repeated. If the view has a reconcile function, that is asked first."
    )


def to_do(facts: Facts) -> str:
    """Say what to do. For an abandoned key, first make sure that the worker is dead and not just slow."""
    if facts.unreadable:
        return _(
            "Do not ask the client to retry; put the missing encryption key back. If it is lost for good, never "
            "forget or release this idempotency key: find the order, and decide by the called service's books."
        )
    to_do = str((EXPIRED if facts.expired else facts.state).to_do)
    if facts.lost and facts.state.name == "half_done":
        to_do = _(
            "Look up what these calls returned and enter it: %(names)s. Until then every retry fails; afterwards, "
            "the next one continues from there."
        ) % {"names": ", ".join(facts.lost)}
    if not facts.abandoned or not facts.row.worker:
        return to_do
    dead = _("First make sure that the worker %(worker)s (host:process) is dead and not just slow.")
    return f"{dead % {'worker': facts.row.worker}} {to_do}"
