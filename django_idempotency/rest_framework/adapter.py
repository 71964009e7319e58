"""What does the REST framework do in a request to a protected handler?"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, UnreadablePostError
from django.http.response import HttpResponseBase
from rest_framework import authentication
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Empty, Request
from rest_framework.response import Response
from rest_framework.settings import api_settings

from ..engine.conf import Options
from ..engine.declare.wrappers import innermost
from ..engine.execution.bridge import synchronous
from ..engine.protocol.outcomes import Finished
from ..engine.request.adapters import Adapter
from ..engine.request.callers import authenticated_scope, is_authenticated
from ..engine.request.calls import Call
from ..engine.request.fingerprints import JSON, MULTIPART, Unparsable, parsed_payload_of
from .finality import settle

UNPARSED = "_idempotency_unparsed"
"""The attribute of a request that holds the error of its parser, if the body could not be parsed."""


class RestFrameworkAdapter(Adapter):
    """A handler is called after `APIView.initial()`, which has authenticated the caller, and has checked the
    permissions and the throttles.
    """

    def is_request(self, candidate: Any) -> bool:
        return isinstance(candidate, Request)

    def django_request(self, request: Any) -> HttpRequest:
        return request._request  # type: ignore[no-any-return]

    def caller(self, request: Any) -> str | None:
        """Return the scope of a token without a user, or of the user."""
        if request.auth is None or is_authenticated(request.user):
            return super().caller(request)
        if request.successful_authenticator is None and api_settings.UNAUTHENTICATED_TOKEN is not None:
            return super().caller(request)  # the request has no token, so `request.auth` is UNAUTHENTICATED_TOKEN
        kind = type(request.successful_authenticator)
        # The REST framework's own authenticators never set `request.auth` to a string. So this line counts only
        # authenticators of other packages and of the project.
        several = sum(type(one).__module__ != authentication.__name__ for one in request.authenticators) > 1
        return authenticated_scope(request, f"{kind.__module__}.{kind.__qualname__}" if several else "")

    def payload(self, request: Any, options: Options, content_type: str) -> Any:
        """Compare the data that the view's own parsers have read from the request body.

        If a parser fails, the package compares the raw bytes of the body. If the handler later reads `request.data`,
        the parser fails again, and the error rolls back the claim. But in leased mode, a committed claim cannot be
        rolled back. So in leased mode, this method raises the parser's error before the claim. This method also raises
        the error for a multipart form, because the stream of the form cannot be read again.
        """

        def parsed() -> Any:
            try:
                return request.data
            except UnreadablePostError:
                raise
            except Exception as error:
                claims_first = options.lease is not None and not options.observe
                gone = request._request.content_type == MULTIPART
                if (claims_first or gone) and not isinstance(error, UnsupportedMediaType):
                    raise
                setattr(request, UNPARSED, error)
                # After a parser error, the request stores empty data. This loop removes the stored data. So if the
                # handler reads the data, the parser runs again, and the handler gets the same error.
                for name in ("_data", "_files", "_full_data", "_stream"):
                    setattr(request, name, Empty)
                raise Unparsable from error

        return parsed_payload_of(request._request, content_type, parsed)

    def response(self, call: Call, returned: Any) -> HttpResponseBase:
        view = view_of(call)
        return super().response(call, view.finalize_response(call.asked_with, returned, *view.args, **view.kwargs))

    def answer(self, call: Call, error: Exception) -> Finished[HttpResponseBase]:
        """Return the rendered response that the REST framework makes for an exception.

        The exception handler and the renderer run in two separate transactions. The default exception handler calls
        `set_rollback()`, so the transaction of the exception handler allows no more queries. But the renderer can need
        queries.
        """
        if type(error) is type(vars(call.asked_with).get(UNPARSED)):
            raise error  # the parser's error must roll back the claim
        view = view_of(call)
        try:
            with call.own_transaction():
                response = view.handle_exception(error)
        except Exception as unanswered:
            settle(view, call.request, unanswered)
            raise
        with call.own_transaction():
            return call.judge(self.response(call, response))

    def may_replay(self, call: Call, allowed: Callable[..., bool]) -> bool:
        """Ask the project's function, which gets the request and the view."""
        return bool(synchronous(allowed)(call.asked_with, view_of(call)))

    def deliver(self, call: Call, response: Any, *, replayed: bool, own: bool = False) -> HttpResponseBase:
        if not own:
            if not getattr(response, "is_rendered", True):
                response = self.response(call, response)  # the project's function ERROR_RESPONSE has made this response
            if not hasattr(response, "data"):
                response.data = _data_of(response)  # tests and middlewares can read `response.data`
        settle(view_of(call), call.request, response)
        return super().deliver(call, response, replayed=replayed)

    # --- without a request

    def recovered(self, returned: Any, target: Any) -> HttpResponseBase:
        """Render a response with the view's own JSON renderer, or with the framework's.

        The format is always JSON, because no client waits for this response. The view's method `finalize_response` is
        not called.
        """
        if not isinstance(returned, Response) or returned.is_rendered:
            return returned  # type: ignore[no-any-return]
        if not hasattr(target, "renderer_classes"):  # a method has none, so ask the class that defines the method
            owner = getattr(target, "__qualname__", "").rpartition(".")[0]
            target = getattr(innermost(target), "__globals__", {}).get(owner)
        renderers: Any = getattr(target, "renderer_classes", api_settings.DEFAULT_RENDERER_CLASSES)
        renderer = next((found for found in renderers if found.format == "json"), JSONRenderer)()
        context: dict[str, Any] = {"view": None, "request": None, "args": (), "kwargs": {}, "response": returned}
        returned.accepted_renderer = renderer
        returned.accepted_media_type = renderer.media_type
        vars(returned)["renderer_context"] = context
        return returned


def view_of(call: Call) -> Any:
    request: Any = call.asked_with
    return request.parser_context["view"]


def _data_of(response: Any) -> Any:
    """Return the data of a stored response or of an error answer. If the content is not JSON, return None."""
    is_json = not response.streaming and JSON.match(response.headers.get("Content-Type", ""))
    try:
        return json.loads(response.content) if is_json else None
    except (ValueError, RecursionError):
        return None


ADAPTER = RestFrameworkAdapter()
