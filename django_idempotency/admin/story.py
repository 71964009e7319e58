"""This module makes the texts on the admin page of a key.

The texts tell what has happened to the key, what is certain, what is not certain, and what comes next.
"""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.stores.states import ATTENTION
from ..maintenance.facts import Facts, Kind
from ..models import IdempotencyKey
from .texts import moment

Policy = IdempotencyKey.Policy
WITHOUT_DECISION = {
    "in_doubt": gettext_lazy(
        "The doubt stays: a charge without an order, or an order without a charge. Expires: %(expiry)s."
    ),
    "half_done": gettext_lazy("The work stays half done, if no retry comes. Expires: %(expiry)s."),
    "stuck": gettext_lazy("No harm is done: the request has failed, and no call was made."),
    "in_flight": gettext_lazy("The worker ends, or a retry takes the key over after the lease."),
}


class Story(Facts):
    """An operator who looks at a key in the admin has questions. This class answers them.

    Each answer is a text of a few short sentences, or an empty text.
    """

    @property
    def happened(self) -> str:
        row = self.row
        values = {"attempt": row.attempt, "time": moment(row.locked_until), "status": row.status_code}
        if self.state.name == "completed":
            return _("The operation has ended with status %(status)s.") % values
        if self.live:
            return _("A worker is at work on attempt %(attempt)s. It holds the lease until %(time)s.") % values
        if self.unleased:
            return _("The view ended its own transaction, and then failed or died.")
        if row.status == IdempotencyKey.Status.FAILED:
            return _("Attempt %(attempt)s ended without a final response.") % values
        return _("The worker of attempt %(attempt)s has died or is too slow: its lease was over at %(time)s.") % values

    @property
    def certain(self) -> str:
        if self.finished:
            return _("These steps have ended: %(names)s.") % {"names": ", ".join(self.finished)}
        if self.state.name == "completed":
            return _("The response is kept.")
        if self.unleased:
            return _("What the view wrote before the end of its transaction is kept.")
        if self.in_doubt:
            return _("No step has a result.")
        return _("No step was started: nothing has happened outside.")

    @property
    def uncertain(self) -> str:
        names = {"names": ", ".join(self.in_doubt)}
        if self.write_in_doubt:
            return _("Whether these steps took effect: %(names)s. A write ended its own transaction in the middle.") % (
                names
            )
        if self.in_doubt:
            return _(
                "Whether these calls took effect: %(names)s. They were started and have no result. The other side "
                "knows a call by its derived key only if the view has sent that key; else by your reference, the "
                "amount and the time."
            ) % (names)
        if self.unleased:
            return _("Which part of its work the view has done.")
        if self.lost:
            return _("Nothing, but what these calls returned was lost: %(names)s. Look it up, and enter it.") % {
                "names": ", ".join(self.lost)
            }
        return self._missing if self.state.name == "half_done" else ""

    @property
    def _missing(self) -> str:
        """Return a text that says which work was perhaps not done.

        All started steps of the key have ended. But if the view ran again, the view could start more steps.
        """
        written = [step.name for step in self.steps if step.kind == Kind.WRITE and step.finished_at is not None]
        if not written:
            return _("Nothing. But no local write has ended: what belongs to these calls is missing, such as an order.")
        return _(
            "Nothing. The local writes have ended, too: %(names)s. If no step follows, only the answer is missing."
        ) % {"names": ", ".join(written)}

    @property
    def without_decision(self) -> str:
        text = WITHOUT_DECISION.get(self.state.name) or _(
            "The key expires at %(expiry)s. Then a request with it runs as a new one."
        )
        if self.unleased:
            text = _("The key stays as it is, and retries are refused. Expires: %(expiry)s.")
        never = self.state in ATTENTION
        expiry = _("never, while it needs attention") if never else moment(self.row.expires_at)
        return text % {"expiry": expiry}

    @property
    def next_retry(self) -> str:
        if self.unreadable:
            return _("It gets an error (500), because the stored texts cannot be decrypted. Nothing runs again.")
        if self.state.name == "completed" and self.row.body is not None:
            return _("It gets the kept response. Nothing runs again.")
        if self.state.name == "completed":
            return _(
                "It is told that the operation has ended, and that the response was not stored. Nothing runs again."
            )
        if self.live:
            return _("A retry is told that the request is still being processed.")
        if self.unleased or self.write_in_doubt:
            return _("It is refused with 409. A person has to decide.")
        if self.in_doubt:
            return self._after_doubt
        return self._after_steps

    @property
    def _after_steps(self) -> str:
        if self.lost:
            return _("The view runs again, and fails when it asks for %(names)s. Enter the lost value first.") % {
                "names": ", ".join(self.lost)
            }
        if self.finished:
            return _("The view runs again. Steps that have ended are not repeated; the view gets their results.")
        return _("The view runs again.")

    @property
    def _after_doubt(self) -> str:
        keyed = self.row.policy == Policy.RETRY_KEYED
        if keyed and self.unkeyed:
            return _(
                "It is refused with 409: the other side could not recognize another call of %(names)s. If the view has "
                "a reconcile function, the function is asked first. For the future: let the view ask for "
                'operation.derive_key(…) before the call and send it along, or pass on_abandoned="retry" if making the '
                "call twice is harmless."
            ) % {"names": ", ".join(self.unkeyed)}
        if self.row.policy == Policy.RETRY and self.unsent:
            return _(
                "The view runs again, and makes the calls in doubt again. The other side cannot recognize another call "
                "of %(names)s, because the view had asked for no derived key before it. If the view has a reconcile "
                "function, the function is asked first."
            ) % {"names": ", ".join(self.unsent)}
        if keyed or self.row.policy == Policy.RETRY:
            return _(
                "The view runs again, and makes the calls in doubt again with the same derived keys. If the view has a "
                "reconcile function, the function is asked first."
            )
        return _(  # a key without a policy is treated like a key with the policy "hold"
            "It is refused with 409, and no call is made again. If the view has a reconcile function, the function "
            "is asked first."
        )

    @property
    def to_do(self) -> str:
        """Return the advice for a person who decides about this key.

        If the lease of a worker is over, the worker can be dead or slow. A slow worker can still make calls. So the
        advice usually begins with this sentence: make sure that the worker is dead.
        """
        if self.unreadable:
            return _(
                "Do not ask the client to retry. Put the missing encryption key back. If that key is lost for good, "
                "never forget or release this key: find the order, and decide by the books of the other side."
            )
        to_do = str(self.state.to_do)
        if self.lost and self.state.name == "half_done":
            to_do = _(
                "Look up what these calls returned, and enter it: %(names)s. Until then, each retry fails. After that, "
                "the next retry goes on from there."
            ) % {"names": ", ".join(self.lost)}
        if not self.abandoned or not self.row.worker:
            return to_do
        dead = _("First make sure that the worker %(worker)s (host:process) is dead, and not only slow.")
        return f"{dead % {'worker': self.row.worker}} {to_do}"
