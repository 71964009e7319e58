"""May the work end with this answer, although its key has steps?"""

from __future__ import annotations

from ...models import IdempotencyStep
from ..protocol.error_text import describe
from .operation import Operation

Kind = IdempotencyStep.Kind


def may_end_with(operation: Operation, error: Exception) -> bool:
    """Whether the framework's response to this exception may be final.

    The response must not be final if any step is in doubt, or if any call's value has been lost or hasn't reached the
    work, because the exception may have come from that step or call. The same is true if a `write` raised the exception
    after other steps had finished: a completed key would hide the effects of those steps.
    """
    steps = operation._steps.values()
    raised = any(step.broke is error for step in steps) and any(step.finished for step in steps)
    return not (raised or any(step.in_doubt or step.lost or step.is_unreceived for step in steps))


def left_behind(operation: Operation) -> str:
    """Return the reason why the work's answer must not complete the key, or an empty string if there is none.

    A key completed too early could leave a paying customer without an order. The key therefore stays open and visible
    as long as a call's value is missing or hasn't reached the work, or it is unknown whether a step took effect. Once a
    call has been made, there are two other cases in which the key stays open: the work caught the exception raised by a
    failed `write`, or it did not request a step that an earlier attempt had finished. A stored `fetch` may be skipped,
    because it only reads.
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
