"""What does REST framework do during a request to a protected handler?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db import connections
from django.http import HttpRequest, UnreadablePostError
from django.http.response import HttpResponseBase
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Empty, Request
from rest_framework.response import Response
from rest_framework.settings import api_settings

from ..engine.conf import Options
from ..engine.declare.wrappers import dotted_name, innermost
from ..engine.execution.bridge import synchronous
from ..engine.protocol.outcomes import Finished
from ..engine.request.adapters import Adapter
from ..engine.request.callers import HandedOn, is_authenticated, name_among
from ..engine.request.calls import Call
from ..engine.request.fingerprints import JSON, MULTIPART, Unparsable, parsed_payload_of
from .finality import leave, settle

UNPARSED = "_idempotency_unparsed"
"""The request attribute that holds the parser's error, if the body could not be parsed."""


class RestFrameworkAdapter(Adapter):
    """A handler is called after `APIView.initial()`, which checks authentication, permissions and throttles."""

    def is_request(self, candidate: Any) -> bool:
        return isinstance(candidate, Request)

    def django_request(self, request: Any) -> HttpRequest:
        return request._request  # type: ignore[no-any-return]

    def handed_on(self, request: Any) -> HandedOn:
        """Return the user with the token, or the token alone."""
        if request.auth is None or is_authenticated(request.user):
            return super().handed_on(request)
        if request.successful_authenticator is None and api_settings.UNAUTHENTICATED_TOKEN is not None:
            return super().handed_on(request)  # there is no token: `request.auth` is UNAUTHENTICATED_TOKEN
        if hasattr(request.auth, "is_authenticated"):
            return HandedOn(user=request.auth)
        # The authenticator is named, because another authenticator can return the same string, in this view or in
        # another view with the same `operation`. The name is missing only if other code has set `request.auth`.
        authenticator = request.successful_authenticator
        named = "" if authenticator is None else name_among(request.authenticators, dotted_name, authenticator)
        return HandedOn(token=request.auth, authenticator=named)

    def payload(self, request: Any, options: Options, content_type: str) -> Any:
        """Return the data read by the view's own parsers or, if a parser fails, a hash of the raw bytes.

        If a parser fails here, it fails again when the handler reads `request.data`, and the claim is then rolled back.
        In leased mode, however, the claim is already committed by then, and a multipart form cannot be read again. In
        these two cases, the error is raised here, before the claim.
        """

        def parsed() -> Any:
            try:
                return request.data
            except UnreadablePostError:
                raise
            except Exception as error:
                claims_first = options.runner.claims_first and not options.observe
                gone = request._request.content_type == MULTIPART
                if (claims_first or gone) and not isinstance(error, UnsupportedMediaType):
                    raise
                setattr(request, UNPARSED, error)
                # The failed parser left empty data behind. Once it is removed, the handler runs the parser again and
                # gets the same error.
                for name in ("_data", "_files", "_full_data", "_stream"):
                    setattr(request, name, Empty)
                raise Unparsable from error

        return parsed_payload_of(request._request, content_type, parsed)

    def response(self, call: Call, returned: Any) -> HttpResponseBase:
        view = view_of(call)
        return super().response(call, view.finalize_response(call.asked_with, returned, *view.args, **view.kwargs))

    def answer(self, call: Call, error: Exception) -> Finished[HttpResponseBase]:
        """Return the rendered response that REST framework produces for an exception.

        The exception handler and the renderer run in separate transactions. In a shared one, the renderer could not
        query the database, because the default handler calls `set_rollback()`. See `_still_queried`.
        """
        if type(error) is type(vars(call.asked_with).get(UNPARSED)):
            raise error  # the parser's error must roll back the claim
        view = view_of(call)
        try:
            response = call.in_own_transaction(partial(view.handle_exception, error))
        except Exception as unanswered:
            settle(view, call.request, unanswered)
            raise

        def rendered() -> Finished[HttpResponseBase]:
            with _still_queried():
                return call.judge(self.response(call, response))

        return call.in_own_transaction(rendered)

    def may_replay(self, call: Call, allowed: Callable[..., bool]) -> bool:
        """Call the project's function with the request and the view."""
        return bool(synchronous(allowed)(call.asked_with, view_of(call)))

    def deliver(self, call: Call, response: Any, *, replayed: bool, own: bool = False) -> HttpResponseBase:
        if not own:
            if not getattr(response, "is_rendered", True):
                response = self.response(call, response)  # created by the project's ERROR_RESPONSE
            if not hasattr(response, "data"):
                response.data = _data_of(response)  # tests and middlewares read this
        settle(view_of(call), call.request, response)
        return super().deliver(call, response, replayed=replayed)

    def unanswered(self, call: Call, error: Exception) -> None:
        leave(view_of(call), call.request, error)

    # --- without a request

    def recovered(self, returned: Any, target: Any) -> HttpResponseBase:
        """Prepare a response to be rendered by the view's own JSON renderer, or by the framework's.

        The format is always JSON, because no client is waiting for the response. `finalize_response` is not called.
        """
        if not isinstance(returned, Response) or returned.is_rendered:
            return returned  # type: ignore[no-any-return]
        if not hasattr(target, "renderer_classes"):  # a method, so look at its class
            owner = getattr(target, "__qualname__", "").rpartition(".")[0]
            target = getattr(innermost(target), "__globals__", {}).get(owner)
        renderers: Any = getattr(target, "renderer_classes", api_settings.DEFAULT_RENDERER_CLASSES)
        renderer = next((each for each in renderers if each.format == "json"), JSONRenderer)()
        context: dict[str, Any] = {"view": None, "request": None, "args": (), "kwargs": {}, "response": returned}
        returned.accepted_renderer = renderer
        returned.accepted_media_type = renderer.media_type
        vars(returned)["renderer_context"] = context
        return returned


@contextmanager
def _still_queried() -> Iterator[None]:
    """Let the renderer query databases whose ATOMIC_REQUESTS transactions are marked for rollback.

    `set_rollback()` marks these transactions on all databases. In a view without protection, they have ended before the
    renderer runs.
    """
    marked = [each for each in connections.all(initialized_only=True) if each.in_atomic_block and each.needs_rollback]
    for connection in marked:
        connection.set_rollback(False)
    try:
        yield
    finally:
        for connection in marked:
            connection.set_rollback(True)


def view_of(call: Call) -> Any:
    request: Any = call.asked_with
    return request.parser_context["view"]


def _data_of(response: Any) -> Any:
    """Return the data of a stored response or of an error response, or None if it is not JSON."""
    is_json = not response.streaming and JSON.match(response.headers.get("Content-Type", ""))
    try:
        return json.loads(response.content) if is_json else None
    except (ValueError, RecursionError):
        return None


ADAPTER = RestFrameworkAdapter()
