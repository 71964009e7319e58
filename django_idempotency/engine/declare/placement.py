"""Is `idempotent` in the right place? It must be below all code that checks the caller, such as
`login_required`. Otherwise a replay could reach the wrong caller, or a caller with a revoked token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

from django.http import HttpRequest
from django.views import View

from ...exceptions import IdempotencyConfigurationError
from ..conf import SAFE_METHODS
from .registry import MARK
from .wrappers import NOT_REPLAYED, dotted_name, innermost, method_name, unknown_wrapper, unwrapped

FUNCTION_ORDER = """
    @login_required
    @idempotent
    def create_order(request): ..."""
DRF_ORDER = FUNCTION_ORDER.replace("@login_required", '@api_view(["POST"])')
HANDLER_ORDER = """
    class OrderView(LoginRequiredMixin, View):
        @method_decorator(permission_required("shop.add_order"))
        @method_decorator(idempotent)
        def post(self, request): ..."""
CLASS_ORDER = """
    @method_decorator(permission_required("shop.add_order"), name="dispatch")
    class OrderView(IdempotencyMixin, View): ...

    class OrderView(IdempotencyMixin, APIView):
        permission_classes = [MayOrder]"""
NINJA = "ninja.operation"
"""The module of Django Ninja's URL callbacks."""
NINJA_ORDER = """
    from django_idempotency.ninja import idempotent_operation

    @api.post("/orders")
    @idempotent_operation
    def create_order(request, payload: OrderIn): ..."""
NINJA_WAY_OUT = f" Use idempotent_operation below the route decorator:\n{NINJA_ORDER}"
ROUTED = ("_ninja_operation", "OPERATION_ENDPOINT_KEY")
"""The attributes that the route decorators of Django Ninja and of django-ninja-extra set on a function."""


def refuse_view(view: Any) -> None:
    """Raise an error if `idempotent` decorates something that is not a view, or is in the wrong place."""
    if isinstance(view, type):
        problem = f'cannot decorate the class {view.__name__}. Use @method_decorator(idempotent, name="post").'
    elif isinstance(view, (classmethod, staticmethod)) or not callable(view):
        problem = f"decorates views, and {view!r} is not one. Pass its options by keyword."
    elif is_routed(view):
        problem = f"sits above the route decorator of {_name(view)}, or in add_decorator.{NINJA_WAY_OUT}"
    elif method_name(view).upper() in SAFE_METHODS:
        problem = f"sits above {_name(view)}, which answers a safe method: there is nothing to protect."
    elif (below := _below(view)) is not None:
        problem = f"sits above {below}"
    else:
        return
    raise IdempotencyConfigurationError(f"idempotent {problem}")


def _below(view: Any) -> str | None:
    """Return the name of the code below `idempotent` that checks the caller, followed by advice.

    Returns None if there is no such code.
    """
    for level in unwrapped(view):  # an outer level, such as a partial, lacks the view's attributes
        if type(getattr(level, "__self__", None)).__module__.partition(".")[0] == "ninja":
            return f"Django Ninja's authentication.{NINJA_WAY_OUT}"
        view_class = getattr(level, "cls", None) or getattr(level, "view_class", None)
        in_class = _checked_below(view_class, view_class.__mro__) if isinstance(view_class, type) else None
        if in_class is not None:
            return in_class
    return _above_a_wrapper(view, FUNCTION_ORDER)


def is_routed(view: Any) -> bool:
    """Return whether this function, or a function that it wraps, is an operation of Django Ninja or django-ninja-extra.

    The operation calls the function directly, so a decorator that is applied now would have no effect.
    """
    return any(hasattr(level, mark) for level in unwrapped(view) for mark in ROUTED)


def refuse_routing(protected: Any) -> None:
    """Use Django Ninja's own hook to raise an error if Ninja creates an operation from a protected view."""
    # Ninja is not imported, because many projects don't use it. The list is replaced rather than extended, because
    # `wraps()` may have copied a reference to the view's own list.
    protected._ninja_contribute_to_operation = [lambda operation: _refuse_ninja(_name(protected))]


def refuse_class(view: Any, args: tuple[Any, ...]) -> None:
    """During a request, refuse `idempotent` on a Ninja operation, or on a `dispatch` that it must not decorate."""
    callback = getattr(getattr(args[0] if args else None, "resolver_match", None), "func", None)
    if getattr(callback, "__module__", None) == NINJA:
        _refuse_ninja(_name(view))
    if getattr(view, "__name__", "") == "dispatch":
        # The instance is the first argument. With `method_decorator`, `view` is a partial around a method that is bound
        # to the instance.
        instance = getattr(getattr(view, "func", None), "__self__", None)
        if instance is None and args and not isinstance(args[0], HttpRequest):
            instance = args[0]
        view_class: Any = type(instance)
        if (problem := misplaced_dispatch(view_class)) is not None:
            raise IdempotencyConfigurationError(problem)


@lru_cache(maxsize=256)
def misplaced_dispatch(view_class: Any) -> str | None:
    """Return an error message if `idempotent` decorates a `dispatch` on which it is not allowed, else None."""
    mro = view_class.__mro__
    decorated = next((i for i, cls in enumerate(mro) if hasattr(vars(cls).get("dispatch"), MARK)), None)
    if decorated is None:
        return None
    if getattr(view_class, "view_is_async", False) and not is_drf_view(view_class):
        return (
            f"idempotent decorates the dispatch of the asynchronous view {view_class.__name__}, which is not itself a "
            "coroutine function. Put it on the handler: @method_decorator(idempotent) above async def post."
        )
    below = _checked_below(view_class, mro[decorated:])
    return None if below is None else f"idempotent decorates the dispatch of {view_class.__name__} above {below}"


def _checked_below(view_class: Any, classes: Sequence[type]) -> str | None:
    """Find the code that checks the caller below a decorated `dispatch`, and return its name, followed by advice.

    Returns None if there is no such code.

    Args:
        classes: the classes of the view's MRO below the protection.
    """
    if is_drf_view(view_class):
        return (
            f"the authentication of the REST framework view {view_class.__name__}. Use IdempotencyMixin, or put it on "
            f"the handler or the function:\n{DRF_ORDER}"
        )
    verbs = [verb for verb in view_class.http_method_names if verb.upper() not in SAFE_METHODS]
    handlers = [handler for verb in verbs if (handler := getattr(view_class, verb, None)) is not None]
    dispatches = [vars(cls)["dispatch"] for cls in classes if "dispatch" in vars(cls)]
    for function in (*handlers, *dispatches):
        name = f"{view_class.__name__}.{_name(function).rpartition('.')[2]}"
        if (below := _above_a_wrapper(function, HANDLER_ORDER, name, below=True)) is not None:
            return below
    # A project's own `dispatch` runs before the handlers, and can check the caller. If there are no handlers, the last
    # `dispatch` in the MRO answers the request itself, so it is left out.
    own = list(dict.fromkeys(innermost(dispatch) for dispatch in dispatches))
    before = [dispatch for dispatch in own if dispatch is not View.dispatch][: None if handlers else -1]
    if not before:
        return None
    return f"{dotted_name(before[0])}, which may check who is calling. Put it on the handler:\n{HANDLER_ORDER}"


def misplaced_decorator(handler: Any) -> str | None:
    """Return the message of system check E006 if `idempotent` is in the wrong place on a handler, else None."""
    below = _above_a_wrapper(handler, HANDLER_ORDER, below=True)
    return None if below is None else f"idempotent sits above {below}"


def refuse_handler(handler: Any) -> None:
    """Raise an error if a handler in a class with the mixin has a decorator that may check the caller.

    Replays would skip that check.
    """
    if (below := _above_a_wrapper(handler, CLASS_ORDER)) is not None:
        raise IdempotencyConfigurationError(f"IdempotencyMixin sits above {below}")


def _above_a_wrapper(function: Any, order: str, name: str = "", *, below: bool = False) -> str | None:
    """Return the first decorator that may check the caller, followed by advice on how to place it.

    Returns None if there is no such decorator.
    """
    wrapper = unknown_wrapper(function, below=below)
    if wrapper is None:
        return None
    if wrapper in NOT_REPLAYED:
        why = "a replay would miss or get wrong: the client, or a middleware, needs it with each response"
    else:
        why = f"may decide who may call {name or _name(function)}: a replay would skip it"
    advice = f"{wrapper}, which {why}. Let it come first:\n{order}"
    if wrapper.startswith("django."):
        return advice
    return (
        f"{advice}\n\nIf it lets a request pass only once, as a captcha or a one-time password does, call it inside "
        "the view: above, it would turn the second click of a double click away from the result of the first.\n\n"
        "If it decides nothing about the caller, allow it in the settings:\n\n"
        f"    IDEMPOTENCY = {{'HARMLESS_DECORATORS': [{wrapper!r}]}}"
    )


def is_drf_view(cls: Any) -> bool:
    """Return whether the class is a REST framework `APIView`, without importing the framework."""
    bases = cls.__mro__ if isinstance(cls, type) else ()
    return any((base.__module__, base.__name__) == ("rest_framework.views", "APIView") for base in bases)


def _refuse_ninja(name: str) -> NoReturn:
    raise IdempotencyConfigurationError(
        f"idempotent cannot protect {name}, an operation of Django Ninja: it knows neither request.auth nor how to "
        f"convert the result. Use idempotent_operation:\n{NINJA_ORDER}"
    )


def _name(view: Any) -> str:
    return getattr(view, "__qualname__", None) or repr(view)
