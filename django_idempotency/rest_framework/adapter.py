"""One request to a protected handler of the REST framework."""

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
    """One request. `APIView.initial()` has already authenticated the caller, and checked permissions and throttles."""

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
        """Return what the view's own parsers have read.

        If parsing fails, the raw bytes are compared. A handler that reads `.data` gets this error again, and the error
        rolls the claim back. There are two exceptions: in leased mode the claim would be committed before the view
        runs, and the stream of a multipart form cannot be read again. In these two cases this method raises the error.
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
            # Without this line, the framework would give empty data to the handler after an error.
            for name in ("_data", "_files", "_full_data", "_stream"):
                setattr(self.asked_with, name, Empty)
            raise Unparsable from error

    def authenticated(self) -> str | None:
        """Return the scope of a token that belongs to no user, or None if there is a user or no token."""
        request: Any = self.asked_with
        if request.auth is None or is_authenticated(request.user):
            return None
        if request.successful_authenticator is None and api_settings.UNAUTHENTICATED_TOKEN is not None:
            return None  # `auth` is the project's own value for "no token"
        kind = type(request.successful_authenticator)
        # The framework's own authenticators never return a text.
        several = sum(type(one).__module__ != authentication.__name__ for one in request.authenticators) > 1
        return auth_scope(request.auth, f"{kind.__module__}.{kind.__qualname__}" if several else "")

    def answer(self, error: Exception) -> Finished[HttpResponseBase]:
        """Let the framework handle the exception, and then render its response, in two transactions.

        `set_rollback()` of the default handler breaks the first transaction, and rendering can need the database.
        """
        if type(error) is type(self.unparsed):
            raise error  # the parser has raised this error already, before the claim
        alias = alias_of(self.options)
        try:
            with transaction.atomic(using=alias):
                response = self.drf_view.handle_exception(error)
        except Exception:
            # Without this line, the framework's dispatch would call the project's exception handler a second time.
            vars(self.drf_view)["handle_exception"] = _raise
            raise
        with transaction.atomic(using=alias):
            return self.judge(self.ready(response))

    def may_replay(self, allowed: Callable[..., bool]) -> bool:
        """Ask the project's `may_replay(request, view)` before a replay."""
        return bool(synchronous(allowed)(self.asked_with, self.drf_view))

    def deliver(self, response: Any, *, replayed: bool) -> HttpResponseBase:
        # The response is final already. Without this line, the framework's dispatch would finalize the response again.
        if not getattr(response, "is_rendered", True):
            response = self.ready(response)  # the project's ERROR_RESPONSE has made this response
        vars(self.drf_view)["finalize_response"] = lambda request, final, *args, **kwargs: final
        if response is not self.first_hand and not hasattr(response, "data"):
            response.data = _data_of(response)  # tests and middleware read `data`
        return super().deliver(response, replayed=replayed)

    def ready(self, response: Any) -> HttpResponseBase:
        view: Any = self.drf_view
        self.first_hand = self.render(view.finalize_response(self.asked_with, response, *view.args, **view.kwargs))
        return self.first_hand


def _data_of(response: Any) -> Any:
    """Return the data of a stored response or of a problem, or None if it is not JSON."""
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
    """Return the call of a protected handler, or None if `request` does not come from the REST framework."""
    if not isinstance(request, Request):
        return None
    return RestFrameworkViewCall(request._request, view, args, kwargs, options, asked_with=request)


def declared(callback: Any) -> None:
    """Return None: the views of the REST framework are classes, and the listing itself reads classes."""


def response(returned: Any, declaration: Declaration) -> HttpResponseBase | None:
    """Prepare a response that `reconcile` has returned. It is rendered as JSON, because there is no client to ask.

    The view's own JSON renderer is used if the view has one. The view's `finalize_response` is not called.
    """
    if not isinstance(returned, Response) or returned.is_rendered:
        return None
    target = declaration.target
    if not hasattr(target, "renderer_classes"):  # the target is a handler, and perhaps its class has renderers
        owner = getattr(target, "__qualname__", "").rpartition(".")[0]
        target = getattr(sys.modules.get(getattr(target, "__module__", "")), owner, None)
    renderers: Any = getattr(target, "renderer_classes", api_settings.DEFAULT_RENDERER_CLASSES)
    renderer = next((found for found in renderers if found.format == "json"), JSONRenderer)()
    returned.accepted_renderer = renderer
    returned.accepted_media_type = renderer.media_type
    vars(returned)["renderer_context"] = {"view": None, "request": None, "args": (), "kwargs": {}, "response": returned}
    return returned
