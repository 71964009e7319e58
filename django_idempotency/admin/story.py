"""A key in words: what happened, what is certain, what is not, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.stores.states import ATTENTION
from ..maintenance.facts import Facts, Kind
from ..models import IdempotencyKey
from .texts import moment

RETRY = IdempotencyKey.Policy.RETRY
WITHOUT_DECISION = {
    "in_doubt": gettext_lazy(
        "The doubt stays: a charge without an order, or an order without a charge. Expires: %(expiry)s."
    ),
    "half_done": gettext_lazy("The work stays half done, if no retry comes. Expires: %(expiry)s."),
    "stuck": gettext_lazy("No harm is done: the request did not run to its end, and no call was made."),
    "in_flight": gettext_lazy("The worker ends, or a retry takes the key over after the lease."),
}


@dataclass(frozen=True, slots=True)
class Story:
    """The answers to what a person on call asks first. Each is some short sentences; `uncertain` may be empty."""

    facts: Facts

    @property
    def happened(self) -> str:
        facts, row = self.facts, self.facts.row
        values = {"attempt": row.attempt, "time": moment(row.locked_until), "status": row.status_code}
        if facts.state.name == "completed":
            return _("The operation has ended with status %(status)s.") % values
        if facts.live:
            return _("A worker is at work on attempt %(attempt)s. It holds the lease until %(time)s.") % values
        if facts.unleased:
            return _("The view ended its own transaction and did not come to its end.")
        if row.status == IdempotencyKey.Status.FAILED:
            return _("Attempt %(attempt)s ended without a final response.") % values
        return _("The worker of attempt %(attempt)s has died or is too slow: its lease was over at %(time)s.") % values

    @property
    def certain(self) -> str:
        facts = self.facts
        if facts.finished:
            return _("These steps have ended: %(names)s.") % {"names": ", ".join(facts.finished)}
        if facts.state.name == "completed":
            return _("The response is kept.")
        if facts.unleased:
            return _("What the view wrote before the end of its transaction is kept.")
        if facts.in_doubt:
            return _("No step has a result.")
        return _("No step was started: nothing has happened outside.")

    @property
    def uncertain(self) -> str:
        facts = self.facts
        names = {"names": ", ".join(facts.in_doubt)}
        if facts.write_in_doubt:
            return _("Whether these steps took effect: %(names)s. A write ended its own transaction in the middle.") % (
                names
            )
        if facts.in_doubt:
            return _(
                "Whether these calls took effect: %(names)s. They were started and have no result. The other side "
                "knows a call by its derived key only if the view has sent that key; else by your reference, the "
                "amount and the time."
            ) % (names)
        if facts.unleased:
            return _("Which part of its work the view has done.")
        return self._missing if facts.state.name == "half_done" else ""

    @property
    def _missing(self) -> str:
        """What is missing, and not what is usually missing. Only the view knows whether more steps would follow."""
        written = [step.name for step in self.facts.steps if step.kind == Kind.WRITE and step.finished_at is not None]
        if not written:
            return _("Nothing. But no local write has ended: what belongs to these calls is missing, such as an order.")
        return _(
            "Nothing. The local writes have ended, too: %(names)s. If no step follows, only the answer is missing."
        ) % {"names": ", ".join(written)}

    @property
    def without_decision(self) -> str:
        text = WITHOUT_DECISION.get(self.facts.state.name) or _(
            "The key expires at %(expiry)s. Then a request with it runs as a new one."
        )
        if self.facts.unleased:
            text = _("The key stays as it is, and retries are refused. Expires: %(expiry)s.")
        never = self.facts.state in ATTENTION
        expiry = _("never, while it needs attention") if never else moment(self.facts.row.expires_at)
        return text % {"expiry": expiry}

    @property
    def next_retry(self) -> str:
        facts = self.facts
        if facts.state.name == "completed" and facts.row.body is not None:
            return _("It gets the kept response. Nothing runs again.")
        if facts.state.name == "completed":
            return _(
                "It is told that the operation has ended, and that the response was not stored. Nothing runs again."
            )
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
                "It is refused with 409, and no call is made again. If the view has a reconcile function, the function "
                "is asked first."
            )
        if facts.finished:
            return _("The view runs again. Steps that have ended are not repeated; the view gets their results.")
        return _("The view runs again.")

    @property
    def to_do(self) -> str:
        """What a person should do about this key. A worker that is only slow can still make its call."""
        facts = self.facts
        if not facts.abandoned or not facts.row.worker:
            return str(facts.state.to_do)
        dead = _("First make sure that the worker %(worker)s (host:process) is dead, and not only slow.")
        return f"{dead % {'worker': facts.row.worker}} {facts.state.to_do}"
