"""This module handles one request to a protected handler of the REST framework."""

from __future__ import annotations

import json
import sys
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

from ..engine.conf import Idempotency
from ..engine.declare.registry import Declaration
from ..engine.execution.bridge import synchronous
from ..engine.protocol.outcomes import Finished
from ..engine.request.callers import auth_scope, is_authenticated
from ..engine.request.fingerprints import JSON, MULTIPART, Unparsable
from ..engine.request.view_call import ViewCall
from ..engine.stores import alias_of


class RestFrameworkViewCall(ViewCall):
    """A `RestFrameworkViewCall` is one request to a view of the REST framework. `APIView.initial()` has already
    authenticated the caller, and checked permissions and throttles.
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

        If a parser fails, the package compares the raw bytes of the body. If the handler then reads `request.data`, the
        parser fails again, and this error rolls back the claim. But the claim of a leased view is committed, and cannot
        be rolled back. So for a leased view, `parsed` itself raises the parser's error. For a multipart form, `parsed`
        also raises the error, because the stream of the form cannot be read again.
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
            # After a parser error, the framework would give empty data to the handler. So this loop deletes the parsed
            # data.
            for name in ("_data", "_files", "_full_data", "_stream"):
                setattr(self.asked_with, name, Empty)
            raise Unparsable from error

    def authenticated(self) -> str | None:
        """Return the scope for a request with a token that belongs to no user. If the request has a user or has no
        token, return None.
        """
        request: Any = self.asked_with
        if request.auth is None or is_authenticated(request.user):
            return None
        if request.successful_authenticator is None and api_settings.UNAUTHENTICATED_TOKEN is not None:
            return None  # `request.auth` is UNAUTHENTICATED_TOKEN, which means "no token"
        kind = type(request.successful_authenticator)
        # The REST framework's own authenticators never set `request.auth` to a string. So this line counts only the
        # other authenticators.
        several = sum(type(one).__module__ != authentication.__name__ for one in request.authenticators) > 1
        return auth_scope(request.auth, f"{kind.__module__}.{kind.__qualname__}" if several else "")

    def answer(self, error: Exception) -> Finished[HttpResponseBase]:
        """Return the rendered response that the REST framework makes for an exception.

        The exception handler and the rendering run in two separate transactions. The default handler calls
        `set_rollback()`, so the first transaction allows no more queries. But the rendering can need queries.
        """
        if type(error) is type(self.unparsed):
            raise error  # the parser has already raised this error before the claim
        alias = alias_of(self.options)
        try:
            with transaction.atomic(using=alias):
                response = self.drf_view.handle_exception(error)
        except Exception:
            # The next line stops `APIView.dispatch` from calling the project's exception handler a second time.
            vars(self.drf_view)["handle_exception"] = _raise
            raise
        with transaction.atomic(using=alias):
            return self.judge(self.ready(response))

    def may_replay(self, allowed: Callable[..., bool]) -> bool:
        """Return whether the project's function `may_replay(request, view)` allows the replay."""
        return bool(synchronous(allowed)(self.asked_with, self.drf_view))

    def deliver(self, response: Any, *, replayed: bool) -> HttpResponseBase:
        if not getattr(response, "is_rendered", True):
            response = self.ready(response)  # the project's ERROR_RESPONSE function has returned this response
        # The response is already final. The next line stops `APIView.dispatch` from finalizing the response again.
        vars(self.drf_view)["finalize_response"] = lambda request, final, *args, **kwargs: final
        if response is not self.first_hand and not hasattr(response, "data"):
            response.data = _data_of(response)  # tests and middleware read `response.data`
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


def view_call(
    request: Any, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Idempotency
) -> RestFrameworkViewCall | None:
    """Return a `RestFrameworkViewCall` for this call of a protected handler. If `request` is not a request of the REST
    framework, return None.
    """
    if not isinstance(request, Request):
        return None
    return RestFrameworkViewCall(request._request, view, args, kwargs, options, asked_with=request)


def declared(callback: Any) -> None:
    """Return None. The module `endpoints.listing` reads the view classes of the REST framework itself."""


def response(returned: Any, declaration: Declaration) -> HttpResponseBase | None:
    """Prepare a response of `reconcile` for rendering as JSON. The format is always JSON, because no client waits for
    this response.

    If the view has its own JSON renderer, this renderer is used. The view's `finalize_response` is not called.
    """
    if not isinstance(returned, Response) or returned.is_rendered:
        return None
    target = declaration.target
    if not hasattr(target, "renderer_classes"):  # if the target is a method, look at its class
        owner = getattr(target, "__qualname__", "").rpartition(".")[0]
        target = getattr(sys.modules.get(getattr(target, "__module__", "")), owner, None)
    renderers: Any = getattr(target, "renderer_classes", api_settings.DEFAULT_RENDERER_CLASSES)
    renderer = next((found for found in renderers if found.format == "json"), JSONRenderer)()
    returned.accepted_renderer = renderer
    returned.accepted_media_type = renderer.media_type
    vars(returned)["renderer_context"] = {"view": None, "request": None, "args": (), "kwargs": {}, "response": returned}
    return returned
