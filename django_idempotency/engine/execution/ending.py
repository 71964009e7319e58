"""May a key with steps be completed with this answer?"""

from __future__ import annotations

from ...models import IdempotencyStep
from ..protocol.error_text import describe
from .operation import Operation

Kind = IdempotencyStep.Kind


def may_end_with(operation: Operation, error: Exception) -> bool:
    """Whether the framework's response to this exception may be final.

    The exception may have come from a step in doubt, or from a call with a value that was lost or hasn't reached the
    work. If there is such a step or call, the response must not be final. The same is true if a `write` raised the
    exception after other steps had finished: a completed key would hide the effects of those steps.
    """
    steps = operation._steps.values()
    raised = any(step.broke is error for step in steps) and any(step.finished for step in steps)
    return not (raised or any(step.in_doubt or step.lost or step.is_unreceived for step in steps))


def left_behind(operation: Operation) -> str:
    """Return the reason why the work's answer must not complete the key, or an empty string if there is none.

    A key completed too early could leave a paying customer without an order. The key therefore stays open and visible
    in these cases:

    * It is unknown whether a step took effect.
    * A call's value is missing, or hasn't reached the work.
    * A call has been made, and the work caught the exception raised by a failed `write`.
    * A call has been made, and the work did not request a step that an earlier attempt had finished. A stored `fetch`
      may be skipped, because it only reads.
    """
    steps = operation._steps.values()
    doubts = ", ".join(operation.in_doubt)
    if operation._reconciling:
        # The answer of `reconcile` is final, even without the call's value. If the operation has only one call, the
        # answer settles it; if there are several, `reconcile` may have looked up a different one.
        if not doubts or operation._names(lambda step: step.kind == Kind.CALL) == operation.in_doubt[:1]:
            return ""
        return (
            f"reconcile answered, and it is unknown whether {doubts} took effect. Where there are several calls, "
            "it has to record each: operation.call(name, look_up)."
        )
    if doubts:
        return f"The work answered, and it is unknown whether {doubts} took effect."
    if lost := ", ".join(operation.lost):
        return f"The work answered, and the value of {lost} was lost."
    if unreceived := ", ".join(operation._names(lambda step: step.is_unreceived)):
        return f"The work answered without the result of {unreceived}, which was stored after the work had given up."
    if not any(step.kind == Kind.CALL and step.finished for step in steps):
        return ""
    for broke in (step.broke for step in steps if step.broke is not None):
        return f"A write raised after a call was made, and the work answered all the same: {describe(broke)}"
    unasked = ", ".join(operation._names(lambda step: step.is_unasked))
    return unasked and (
        f"The work answered without asking for {unasked}, which an earlier attempt has recorded. Ask "
        "for the steps first: a condition of the view must not answer before them."
    )
