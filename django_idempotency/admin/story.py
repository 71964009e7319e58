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


class Story(Facts):
    """Answers an operator's questions about a key. Each answer is a few short sentences, or an empty string."""

    @property
    def happened(self) -> str:
        row = self.row
        values = {"attempt": row.attempt, "time": moment(row.locked_until), "status": row.status_code}
        if self.state.name == "completed":
            return _("The operation finished with status %(status)s.") % values
        if self.live:
            return _("A worker is on attempt %(attempt)s. Its lease runs until %(time)s.") % values
        if self.unleased:
            return _("The view ended its own transaction, then failed or died.")
        if row.status == IdempotencyKey.Status.FAILED:
            return _("Attempt %(attempt)s ended without a final response.") % values
        return _("The worker on attempt %(attempt)s has died or is too slow: its lease expired at %(time)s.") % values

    @property
    def certain(self) -> str:
        if self.finished:
            return _("These steps finished: %(names)s.") % {"names": ", ".join(self.finished)}
        if self.state.name == "completed":
            return _("The response is stored.")
        if self.unleased:
            return _("Whatever the view wrote before its transaction ended is committed.")
        if self.steps:
            return _("No step has a result.")
        if self.row.decisions:
            return _(
                "No step is recorded. Steps that were in doubt may have been deleted by a decision: see the timeline."
            )
        return _("No step was started, so nothing has happened outside.")

    @property
    def uncertain(self) -> str:
        names = {"names": ", ".join(self.in_doubt)}
        if self.write_in_doubt:
            return _(
                "Whether these steps took effect: %(names)s. A write ended its own transaction halfway through."
            ) % (names)
        if self.in_doubt:
            return _(
                "Whether these calls took effect: %(names)s. They were started, but have no result. The called service "
                "knows a call by its derived key only if the view sent that key; otherwise look for your reference, "
                "the amount and the time."
            ) % (names)
        if self.unleased:
            return _("How much of its work the view has done.")
        if self.lost:
            return _("Nothing, but what these calls returned was lost: %(names)s. Look it up and enter it.") % {
                "names": ", ".join(self.lost)
            }
        return self._missing if self.state.name == "half_done" else ""

    @property
    def _missing(self) -> str:
        """Says what may be missing even though all started steps have finished.

        The view might have gone on to start more steps.
        """
        written = [step.name for step in self.steps if step.kind == Kind.WRITE and step.finished_at is not None]
        if not written:
            return _("Nothing, but no local write finished: what belongs to these calls, such as an order, is missing.")
        return _(
            "Nothing. The local writes finished, too: %(names)s. Unless a step follows, only the response is missing."
        ) % {"names": ", ".join(written)}

    @property
    def without_decision(self) -> str:
        text = WITHOUT_DECISION.get(self.state.name) or _(
            "The key expires at %(expiry)s. After that, a request with it counts as new."
        )
        if self.expired:
            text = _("The key expired at %(expiry)s. The next cleanup deletes it.")
        if self.unleased:
            text = _("The key stays as it is, and retries are refused. Expires: %(expiry)s.")
        never = self.state in ATTENTION
        expiry = _("never, while it needs attention") if never else moment(self.row.expires_at)
        return text % {"expiry": expiry}

    @property
    def next_retry(self) -> str:
        if self.expired:  # a claim checks this first, and then ignores everything that is stored
            return _(
                "Everything runs again, calls and writes included: the key has expired, so a request with it counts "
                'as new. Only an endpoint with late_keys="refuse" refuses it.'
            )
        if self.unreadable:
            return _("It fails with status 500, because what is stored cannot be decrypted. Nothing runs again.")
        if self.state.name == "completed" and self.row.body is not None:
            return _("It gets the stored response. Nothing runs again.")
        if self.state.name == "completed":
            return _(
                "It is told that the operation finished, but that its response was not stored. Nothing runs again."
            )
        if self.live:
            return _("It is told that the request is still being processed.")
        if self.unleased or self.write_in_doubt:
            return _("It is refused with 409 until a person decides.")
        if self.in_doubt:
            return self._after_doubt
        return self._after_steps

    @property
    def _after_steps(self) -> str:
        if self.lost:
            return _("The view runs again, and fails as soon as it asks for %(names)s. Enter the lost value first.") % {
                "names": ", ".join(self.lost)
            }
        if self.finished:
            return _("The view runs again. Finished steps are not repeated; the view gets their stored results.")
        return _("The view runs again.")

    @property
    def _after_doubt(self) -> str:
        keyed = self.row.policy == Policy.RETRY_KEYED
        if keyed and self.unkeyed:
            return _(
                "It is refused with 409, because the called service could not recognize a repeated call of %(names)s. "
                "If the view has a reconcile function, that is asked first. In future, let the view ask for "
                'operation.derive_key(…) before the call and send it along, or pass on_abandoned="retry" if making the '
                "call twice is harmless."
            ) % {"names": ", ".join(self.unkeyed)}
        if self.row.policy == Policy.RETRY and self.unkeyed:
            return _(
                "The view runs again and repeats the calls in doubt. The called service may not recognize a repeated "
                "call of %(names)s: the view had not asked for a derived key before it, or asked so long ago that the "
                "key may be forgotten by now. If the view has a reconcile function, that is asked first."
            ) % {"names": ", ".join(self.unkeyed)}
        if keyed or self.row.policy == Policy.RETRY:
            return _(
                "The view runs again and repeats the calls in doubt, with the same derived keys. If the view has a "
                "reconcile function, that is asked first."
            )
        return _(  # a missing policy counts as "hold"
            "It is refused with 409, and no call is repeated. If the view has a reconcile function, that is asked "
            "first."
        )

    @property
    def to_do(self) -> str:
        """Says what to do. If the key was abandoned, first make sure that its worker is dead and not just slow."""
        if self.unreadable:
            return _(
                "Do not ask the client to retry; put the missing encryption key back. If it is lost for good, never "
                "forget or release this idempotency key: find the order, and decide by the called service's books."
            )
        to_do = str((EXPIRED if self.expired else self.state).to_do)
        if self.lost and self.state.name == "half_done":
            to_do = _(
                "Look up what these calls returned and enter it: %(names)s. Until then every retry fails; afterwards, "
                "the next one continues from there."
            ) % {"names": ", ".join(self.lost)}
        if not self.abandoned or not self.row.worker:
            return to_do
        dead = _("First make sure that the worker %(worker)s (host:process) is dead and not just slow.")
        return f"{dead % {'worker': self.row.worker}} {to_do}"
