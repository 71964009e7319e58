"""How does a protected view run, and what does it receive?"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ...exceptions import IdempotencyConfigurationError
from ..conf import Options
from ..execution.bridge import synchronous
from ..execution.operation import Operation
from ..execution.runners import Work
from ..protocol.outcomes import Finished, Verdict
from .adapters import DJANGO, Adapter
from .calls import Call
from .responses import capture, refuse_stream
from .sessions import keep_stored_session


class ViewCall(Call, Work[HttpResponseBase]):
    """A call that an engine can run as `Work`. Everything that depends on the framework is left to its adapter.

    While the view runs, Django's request has the `_idempotency_runs` attribute.
    """

    adapter: Adapter = DJANGO

    def run(self, operation: Operation) -> Finished[HttpResponseBase]:
        """Call the view; its response determines what happens to its writes and to the key."""
        request: Any = self.request
        self.attach(operation)
        request._idempotency_runs = True
        try:
            response = self.adapter.response(self, self.view(*self.args, **self.kwargs))
        finally:
            del request._idempotency_runs
        return self.judge(response)

    def answer(self, error: Exception) -> Finished[HttpResponseBase] | None:
        """Return the framework's response to an exception that the view has raised, or None."""
        return self.adapter.answer(self, error)

    def reconcile(self, operation: Operation) -> Finished[HttpResponseBase] | None:
        """Ask the project's `reconcile` about an abandoned attempt; None means that the view runs again."""
        if self.options.reconcile is None:
            return None
        self.attach(operation)
        response = synchronous(self.options.reconcile)(operation)
        return None if response is None else final_response(self.adapter.reconciled(self, response), self.options)

    def may_replay(self) -> bool:
        """Ask the project's `may_replay`, if there is one. The function reads the session as it is stored now."""
        allowed = self.options.may_replay
        if allowed is None:
            return True
        keep_stored_session(self.request)
        return self.adapter.may_replay(self, allowed)

    def attach(self, operation: Operation) -> None:
        request: Any = self.request
        request.idempotency = operation
        operation.request = self.asked_with


def final_response(response: Any, options: Options) -> Finished[HttpResponseBase]:
    """Render the response returned by the project's `reconcile`, and return a final outcome containing it.

    Raises `IdempotencyConfigurationError` if the response is not final.
    """
    if not isinstance(response, HttpResponseBase):
        raise IdempotencyConfigurationError(
            f"reconcile returned {response!r}; return an HttpResponse, or None to leave the key to the next retry."
        )
    if hasattr(response, "render"):
        response.render()
    refuse_stream(response, options)
    if options.verdict_on(response) is not Verdict.KEEP:
        raise IdempotencyConfigurationError(
            f"reconcile answered {response.status_code}, which is not final, although it would be replayed. If "
            "it does not know yet, let it raise OutcomeUnknown: the doubt remains, and the next retry calls it again."
        )
    return Finished(value=response, verdict=Verdict.KEEP, snapshot=capture(response, options))


class IdempotentHttpRequest(HttpRequest):
    """The annotation for `request` in a protected view."""

    idempotency: Operation


def get_operation(request: Any) -> Operation:
    """Return the operation of a protected view, which is also `request.idempotency`.

    It provides `key`, `reference` and `refer_to` in both modes; in leased mode, it also provides steps. Its `key` is
    None while the view runs without an idempotency key.

    Args:
        request: Django's or the REST framework's request.

    Raises:
        IdempotencyConfigurationError: the request is not inside a protected view.
    """
    operation = getattr(request, "idempotency", None)
    if not isinstance(operation, Operation):
        raise IdempotencyConfigurationError(
            "this request is not inside a protected view, so it has no operation. Protect the view with @idempotent or "
            "with IdempotencyMixin."
        )
    return operation
