"""How does a final response pass through its view unchanged?

# Note [A response is finalized once]
`APIView.dispatch` finalizes the response that a handler returns, and passes any exception that it raises to the
exception handler. In a protected view, both have already happened when the handler returns: the response is stored
in the handler's transaction, and a stored response must reach the client unchanged. `dispatch` has no option to skip
these steps, and the project may have its own `finalize_response` and `handle_exception`. A protected view's class is
therefore given new versions of both methods. They return a final response unchanged, re-raise a final exception, and
call the original methods for everything else. `IdempotencyMixin` adds them to each class when the class is created. If
a class has a handler with `@idempotent` but does not inherit the mixin, they are added when the first request reaches
that handler.

The view object itself is not changed. Replacing its class with a subclass would run the project's `__init_subclass__`
and metaclass again. Raising an exception to carry the response past `dispatch` would roll back any `atomic()` block
around `dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from ..engine.conf import get_settings

FINAL = "_idempotency_final"
"""The attribute of Django's request that holds the final response, or the exception that the view must raise."""
LEFT = "_idempotency_left"
"""The attribute of Django's request that holds an exception for the view itself to respond to. See `leave`."""
_guards: WeakSet[Any] = WeakSet()


def settle(view: Any, request: Any, final: Any) -> None:
    """Make the view return this response, or raise this exception, unchanged."""
    guard(type(view))
    vars(request)[FINAL] = final


def leave(view: Any, request: Any, error: Exception) -> None:
    """Let the view respond to an exception that ended the attempt, such as one from COMMIT.

    Every response to a request whose key was used says whether it is a replay. This response says that it is not a
    replay.
    """
    guard(type(view))
    vars(request)[LEFT] = error


def guard(view_class: Any) -> None:
    """Wrap two methods of a view class so that they leave final results unchanged.

    See Note [A response is finalized once].
    """
    for name, guarded in (("finalize_response", _finalize_response), ("handle_exception", _handle_exception)):
        own = vars(view_class).get(name)
        if own not in _guards:
            method = guarded(own or _inherited(view_class, name))
            _guards.add(method)
            setattr(view_class, name, method)


def _inherited(view_class: Any, name: str) -> Callable[..., Any]:
    return lambda view, *args, **kwargs: getattr(super(view_class, view), name)(*args, **kwargs)


def _finalize_response(method: Callable[..., Any]) -> Callable[..., Any]:
    def finalize_response(self: Any, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        return response if _is_final(request, response) else method(self, request, response, *args, **kwargs)

    return finalize_response


def _handle_exception(method: Callable[..., Any]) -> Callable[..., Any]:
    def handle_exception(self: Any, exc: Exception) -> Any:
        if _is_final(getattr(self, "request", None), exc):
            raise exc
        response = method(self, exc)
        if _attributes(getattr(self, "request", None)).get(LEFT) is exc:
            response.headers[get_settings().replayed_header] = "false"
        return response

    return handle_exception


def _is_final(request: Any, candidate: Any) -> bool:
    """Return whether the view must leave `candidate` unchanged. If so, the request's reference to it is removed."""
    attributes = _attributes(request)
    if FINAL not in attributes or attributes[FINAL] is not candidate:
        return False
    del attributes[FINAL]
    return True


def _attributes(request: Any) -> dict[str, Any]:
    """Return the attributes of Django's own request."""
    return getattr(getattr(request, "_request", request), "__dict__", {})
