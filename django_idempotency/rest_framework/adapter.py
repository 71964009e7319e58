"""This module handles one request to a protected handler of the REST framework."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.db import transaction
from django.http import UnreadablePostError
from django.http.response import HttpResponseBase
from rest_framework import authentication
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Empty, Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from ..engine.conf import Options
from ..engine.declare.wrappers import innermost
from ..engine.execution.bridge import synchronous
from ..engine.protocol.outcomes import Finished
from ..engine.request.adapters import Adapter
from ..engine.request.callers import auth_scope, is_authenticated
from ..engine.request.fingerprints import JSON, MULTIPART, Unparsable
from ..engine.request.view_call import ViewCall
from ..engine.stores import alias_of


class RestFrameworkViewCall(ViewCall):
    """A `RestFrameworkViewCall` object represents one request to a view of the REST framework. The method
    `APIView.initial()` has already authenticated the caller. The method has also checked the permissions and the
    throttles.
    """

    asked_with: Request
    unparsed: Exception | None = None
    """The error of the parser, if the body could not be parsed."""
    first_hand: HttpResponseBase | None = None
    """The view's own response, after the view has returned it."""

    @property
    def drf_view(self) -> APIView:
        view: APIView = self.asked_with.parser_context["view"]
        return view

    def parsed(self) -> Any:
        """Return the data that the view's own parsers have read from the request body.

        If a parser fails, the package compares the raw bytes of the body. If the handler later reads `request.data`,
        the parser fails again, and the error rolls back the claim. But in leased mode, a committed claim cannot be
        rolled back. So in leased mode, this method raises the parser's error before the claim. This method also raises
        the error for a multipart form, because the stream of the form cannot be read again.
        """
        try:
            return self.asked_with.data
        except UnreadablePostError:
            raise
        except Exception as error:
            claims_first = self.options.lease is not None and not self.options.observe
            gone = self.request.content_type == MULTIPART
            if (claims_first or gone) and not isinstance(error, UnsupportedMediaType):
                raise
            self.unparsed = error
            # After a parser error, the request stores empty data. This loop removes the stored data. So if the handler
            # reads the data, the parser runs again, and the handler gets the same error.
            for name in ("_data", "_files", "_full_data", "_stream"):
                setattr(self.asked_with, name, Empty)
            raise Unparsable from error

    def authenticated(self) -> str | None:
        return ADAPTER.authenticated(self.asked_with)

    def answer(self, error: Exception) -> Finished[HttpResponseBase]:
        """Return the rendered response that the REST framework makes for an exception.

        The exception handler and the renderer run in two separate transactions. The default exception handler calls
        `set_rollback()`, so the transaction of the exception handler allows no more queries. But the renderer can need
        queries.
        """
        if type(error) is type(self.unparsed):
            raise error  # the parser's error must roll back the claim
        alias = alias_of(self.options)
        try:
            with transaction.atomic(using=alias):
                response = self.drf_view.handle_exception(error)
        except Exception:
            # Without the next line, `APIView.dispatch` would call the project's exception handler a second time.
            vars(self.drf_view)["handle_exception"] = _raise
            raise
        with transaction.atomic(using=alias):
            return self.judge(self.ready(response))

    def may_replay(self, allowed: Callable[..., bool]) -> bool:
        """Return whether the project's function `may_replay(request, view)` allows the replay."""
        return bool(synchronous(allowed)(self.asked_with, self.drf_view))

    def deliver(self, response: Any, *, replayed: bool) -> HttpResponseBase:
        if not getattr(response, "is_rendered", True):
            response = self.ready(response)  # the project's function ERROR_RESPONSE has made this response
        # Without the next line, `APIView.dispatch` would finalize the response a second time.
        vars(self.drf_view)["finalize_response"] = lambda request, final, *args, **kwargs: final
        if response is not self.first_hand and not hasattr(response, "data"):
            response.data = _data_of(response)  # tests and middlewares can read `response.data`
        return super().deliver(response, replayed=replayed)

    def ready(self, response: Any) -> HttpResponseBase:
        view: Any = self.drf_view
        self.first_hand = self.render(view.finalize_response(self.asked_with, response, *view.args, **view.kwargs))
        return self.first_hand


def _data_of(response: Any) -> Any:
    """Return the data of a stored response or of an error answer. If the content is not JSON, return None."""
    is_json = not response.streaming and JSON.match(response.headers.get("Content-Type", ""))
    try:
        return json.loads(response.content) if is_json else None
    except (ValueError, RecursionError):
        return None


def _raise(error: Exception) -> Any:
    raise error


class RestFrameworkAdapter(Adapter):
    def is_request(self, candidate: Any) -> bool:
        return isinstance(candidate, Request)

    def call(
        self, request: Any, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> RestFrameworkViewCall:
        return RestFrameworkViewCall(request._request, view, args, kwargs, options, asked_with=request)

    def authenticated(self, request: Any) -> str | None:
        """Return the scope of a request that has a token, but no user. For every other request, return None."""
        if request.auth is None or is_authenticated(request.user):
            return None
        if request.successful_authenticator is None and api_settings.UNAUTHENTICATED_TOKEN is not None:
            return None  # the request has no token, so `request.auth` is UNAUTHENTICATED_TOKEN
        kind = type(request.successful_authenticator)
        # The REST framework's own authenticators never set `request.auth` to a string. So this line counts only
        # authenticators of other packages and of the project.
        several = sum(type(one).__module__ != authentication.__name__ for one in request.authenticators) > 1
        return auth_scope(request.auth, f"{kind.__module__}.{kind.__qualname__}" if several else "")

    def response(self, returned: Any, target: Any) -> HttpResponseBase:
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


ADAPTER = RestFrameworkAdapter()
