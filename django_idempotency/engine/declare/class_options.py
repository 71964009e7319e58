"""How is a class-based view protected, and which options do the view and its base classes declare in `idempotency`?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from inspect import isfunction
from types import CodeType
from typing import Any, ClassVar, cast

from asgiref.sync import iscoroutinefunction
from django.views import View

from ...exceptions import IdempotencyConfigurationError
from ..conf import SAFE_METHODS, Idempotency, Options, as_options, get_settings, merged, meta_name, resolve
from ..events import unprotected
from ..execution.memory import standing_in
from ..request.atomic_requests import (
    as_django_would,
    awaited_as_django_would,
    take_over,
    whole_if,
)
from .decorators import call_of, protected_form
from .placement import is_drf_view, refuse_handler
from .registry import Declaration, register
from .wrappers import dotted_name, innermost

Handler = Callable[..., Any]
Declared = Idempotency | Mapping[str, Any] | None
"""What `idempotency` can be. None leaves the class unprotected."""
HANDLERS = sorted({*View.http_method_names} - {"head", "options", "trace"})
"""Handlers that a view must define itself. `head`, `options` and `trace` are missing, because Django may add them."""
BARE = "_idempotency_bare"
"""The attribute of a view object that holds its handlers without their protection."""
CALLED = "_idempotency_called"
"""The attribute that marks a view object once one of its handlers has been called or its response replayed."""
INHERIT = Idempotency()
"""Sets nothing, so that the settings and the defaults apply."""


class IdempotencyMixin:
    """Run the POST or PATCH handler of a class-based view, such as a `FormView` or an `APIView`, once for each key.

    The handler runs in a transaction that the mixin opens; with the `lease` option, it runs in leased mode, with no
    transaction open. It can be `def` or, in plain Django, `async def`.

    List the mixin before the view class and after any access mixins, as in
    `class OrderView(LoginRequiredMixin, IdempotencyMixin, CreateView)`. It wraps only the handler. Access mixins run
    first, even before a replay, and so do the REST framework's authentication, permissions, throttles and content
    negotiation.

    Args:
        idempotency: an `Idempotency` or a dict of its options, for the class or `@action(…, idempotency=…)`. None
            leaves the class unprotected. Missing options come from the base classes, the settings and the defaults.
        idempotency_actions: a dict that maps the names of handlers, such as a viewset's standard actions, to their
            options.

    Raises:
        IdempotencyConfigurationError: (a TypeError) when the class is made, if its bases are in the wrong order or an
            option is impossible.
    """

    idempotency: ClassVar[Declared] = INHERIT
    idempotency_actions: ClassVar[Mapping[str, Declared]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        above = cls.__mro__[: cls.__mro__.index(IdempotencyMixin)]
        top = next(filter(is_drf_view, reversed(cls.__mro__)), View)
        below = top if top in above else next(filter(_ends_in_dispatch, above), None)
        if below is not None:
            raise IdempotencyConfigurationError(
                "IdempotencyMixin must come before the view class, and after access mixins:\n\n"
                f"    class {cls.__name__}(…, IdempotencyMixin, …, {below.__name__}): ..."
            )
        if "idempotency" in vars(cls):
            cls.idempotency = checked(cls.idempotency)
        if "idempotency_actions" in vars(cls):
            cls.idempotency_actions = checked_actions(cls.idempotency_actions)

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        if "idempotency" in initkwargs:
            initkwargs["idempotency"] = checked(initkwargs["idempotency"])
        if "idempotency_actions" in initkwargs:
            initkwargs["idempotency_actions"] = checked_actions(initkwargs["idempotency_actions"])
        if not has_handlers(cls):
            raise IdempotencyConfigurationError(
                f"{cls.__name__} has no handlers for the mixin to protect: its dispatch() answers by itself. Use "
                '@method_decorator(idempotent, name="dispatch").'
            )
        view: Any = super().as_view(*args, **initkwargs)  # type: ignore[misc]
        if next(base for base in cls.__mro__ if "dispatch" in vars(base)) is IdempotencyMixin:
            # Copy the attributes that a decorator such as csrf_exempt has set on the `dispatch` of a base class. Django
            # itself copies only the attributes of the mixin's `dispatch`.
            vars(view).update(vars(super().dispatch))  # type: ignore[misc]
        take_over(view, lambda: class_layers(cls, initkwargs))
        actions: Mapping[str, str] | None = getattr(view, "actions", None)
        for method, name, handler in handlers(cls, initkwargs, actions):
            if (declaration := class_declaration(cls, initkwargs, name)) is not None:
                register(declaration)
                if method in _methods(declaration):
                    refuse_handler(handler)
        return whole_if(partial(_passes, cls, initkwargs, actions or {}), view)

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        view, parent = cast("Any", self), cast("Any", super())
        # Each request has its own view object, so all of its handlers can be replaced. The framework's dispatch()
        # performs its checks before it calls a handler. This is usually the handler for `request.method`, but code
        # below the mixin may change the method, as with X-HTTP-Method-Override. The handlers are collected only once,
        # because a `dispatch` above the mixin may retry and call this method again.
        if (bare := vars(self).get(BARE)) is None:
            bare = vars(self)[BARE] = {
                verb: handler
                for verb in view.http_method_names
                if (handler := getattr(view, verb, None)) is not None
                and (verb.upper() not in SAFE_METHODS or iscoroutinefunction(handler))
            }
        # adrf asks whether a handler is a coroutine function, and treats a class with a coroutine method as an
        # asynchronous view. `_awaited` is therefore a coroutine function, but not a method of the mixin.
        vars(self).update(
            {
                verb: partial(_awaited if iscoroutinefunction(handler) else _protected, self, bare, handler)
                for verb, handler in bare.items()
            }
        )
        response = parent.dispatch(request, *args, **kwargs)
        if CALLED not in vars(self):
            self._warn_if_bypassed(request, response)
        return response

    def _warn_if_bypassed(self, request: Any, response: Any) -> None:
        """Log that a `dispatch` below the mixin has answered a protected method without calling its handler.

        Only successes are logged, because any other response may be a refusal by a framework or an access mixin.
        """
        method = request.method.upper()
        if method in SAFE_METHODS or getattr(response, "status_code", 0) not in range(200, 300):
            return
        declaration = class_declaration(type(self), vars(self), self._handler_name(method))
        if declaration is not None and not declaration.by_request and method in _methods(declaration):
            unprotected(dotted_name(type(self)), f"its dispatch() answers a {method} without calling the handler")

    @contextmanager
    def _handling(self, bare: Mapping[str, Any], handler: Handler, request: Any) -> Iterator[tuple[Any, Handler]]:
        """Yield the handler's options (None if it is not protected) and the protected handler.

        The protection is off while a handler runs, because the handler may call another one, as ProcessFormView.put()
        does. Afterwards, the protection is turned on again, because a `dispatch` below the mixin may call the handler
        again, for example after a deadlock.
        """
        vars(self)[CALLED] = True
        wrapped = {verb: vars(self)[verb] for verb in bare}
        vars(self).update(bare)
        method = request.method.upper()
        try:
            options = None if method in SAFE_METHODS else self.options_for(handler, method)
            yield options, handler if options is None else protected_form(handler, partial(call_of, options))
        finally:
            vars(self).update(wrapped)

    def get_idempotency_options(self) -> Declared:
        """Return the options declared for this request, or None if it is not protected.

        The mixin calls this after authentication. Override it to let the options depend on `self.request` or
        `self.action`. Options that it leaves out come from the project's setting and the defaults.
        """
        method = getattr(getattr(self, "request", None), "method", None)
        layers = class_layers(type(self), vars(self), self._handler_name(str(method)))
        return merged(*layers) if layers else None

    def _handler_name(self, method: str) -> str:
        """Return the name of the handler of this request: a verb or, in a viewset, an action."""
        verb = method.lower()
        actions = getattr(self, "action_map", None)
        if actions is None:  # not a viewset, so an `action` attribute means something else
            return verb
        # The REST framework sets `action` only in initialize_request().
        return str(getattr(self, "action", None) or actions.get(verb, verb))

    def options_for(self, handler: Handler, method: str) -> Options | None:
        """Return the options of this handler, or None if the current request is not protected."""
        given = checked(self.get_idempotency_options())
        if given is None:
            return None
        options = resolve(given)
        if decides_by_request(type(self)) and method in options.methods:
            # as_view() could not check this handler, because the options depend on the request.
            refuse_handler(handler)
        return options


def _ends_in_dispatch(base: type) -> bool:
    """Return whether the class has a `dispatch` of its own that calls no other `dispatch`, as adrf's views do.

    The mixin's `dispatch` would then never be called, and each retry would run the handler again. If a function of the
    class mentions `dispatch`, it probably calls the next `dispatch` in the MRO.
    """
    if issubclass(base, IdempotencyMixin) or not issubclass(base, View) or "dispatch" not in vars(base):
        return False
    functions = filter(isfunction, map(innermost, filter(callable, vars(base).values())))
    return not any("dispatch" in _names(function.__code__) for function in functions)


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _protected(
    view: IdempotencyMixin, bare: Mapping[str, Any], handler: Handler, /, request: Any, *args: Any, **kwargs: Any
) -> Any:
    with view._handling(bare, handler, request) as (options, form):
        return standing_in(as_django_would(request, options), partial(form, request, *args, **kwargs))


async def _awaited(
    view: IdempotencyMixin, bare: Mapping[str, Any], handler: Handler, /, request: Any, *args: Any, **kwargs: Any
) -> Any:
    with view._handling(bare, handler, request) as (options, form):
        # The coroutine runs after dispatch() has returned, so the transaction must wrap the handler.
        return await awaited_as_django_would(request, options, form, request, *args, **kwargs)


# If the class kept its docstring, drf-spectacular would copy it into the OpenAPI description of each operation.
IdempotencyMixin.__doc__ = None


def checked(value: Declared) -> Idempotency | None:
    """Return the options as an `Idempotency`, or None. Raises `IdempotencyConfigurationError` if they are invalid."""
    return None if value is None else as_options(value)


def checked_actions(actions: Mapping[str, Declared]) -> dict[str, Idempotency | None]:
    return {name: checked(value) for name, value in actions.items()}


def class_declaration(cls: Any, attributes: Mapping[str, Any], name: str) -> Declaration | None:
    """Return the declaration of a class, or None if it is not protected or lacks the mixin.

    Args:
        attributes: the view's attributes, or those that `as_view()` will set on it.
        name: the name of the handler: a verb, or the action of a viewset.
    """
    layers = class_layers(cls, attributes, name) if issubclass(cls, IdempotencyMixin) else ()
    return Declaration(layers, cls, decides_by_request(cls)) if layers else None


def has_handlers(cls: Any) -> bool:
    """Return whether the class has handlers.

    This is true for every REST framework view, because a viewset's actions are handlers, too.
    """
    return is_drf_view(cls) or any(hasattr(cls, verb) for verb in HANDLERS)


def answers_in_dispatch(cls: Any) -> bool:
    """Return whether the class has its own `dispatch` that answers each method, as GraphQL views do."""
    return not has_handlers(cls) and innermost(cls.dispatch) is not View.dispatch


def decides_by_request(cls: Any) -> bool:
    """Return whether the class overrides `get_idempotency_options`.

    If so, its options can vary from request to request.
    """
    own = getattr(cls, "get_idempotency_options", IdempotencyMixin.get_idempotency_options)
    return own is not IdempotencyMixin.get_idempotency_options


def _passes(cls: Any, attributes: Mapping[str, Any], actions: Mapping[str, str], request: Any) -> bool:
    """Return True if it is certain, before the view is called, that this request will not be protected."""
    method, conf = request.method.upper(), get_settings()
    if cls.view_is_async:
        return False  # only its handlers need Django's transaction: see `awaited_as_django_would`
    if method in SAFE_METHODS or not conf.enabled:
        return True
    if decides_by_request(cls):
        return False
    verb = method.lower()
    layers = class_layers(cls, attributes, actions.get(verb, verb))
    if not layers or method not in (options := resolve(*layers)).methods:
        return True
    return not options.required and options.key is None and meta_name(conf.header) not in request.META


def _methods(declaration: Declaration) -> Collection[str]:
    with suppress(IdempotencyConfigurationError):  # the system check E007 reports options that contradict each other
        return declaration.options.methods
    return ()


def handlers(
    cls: Any, attributes: Mapping[str, Any], actions: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str, Any]]:
    """Yield the HTTP method, name and handler for each unsafe method of a view class.

    Args:
        actions: a viewset's actions, as a dict that maps verbs to the names of their handlers.
    """
    for verb in attributes.get("http_method_names", cls.http_method_names):
        name = verb if actions is None else actions.get(verb, "")
        if verb.upper() not in SAFE_METHODS and hasattr(cls, name):
            yield verb.upper(), name, getattr(cls, name)


def class_layers(cls: Any, attributes: Mapping[str, Any], name: str | None = None) -> tuple[Any, ...]:
    """Return the options declared for a class with the mixin, or an empty tuple if it is not protected.

    They come from the view object, the handler, the class and its base classes, in this order. None switches the
    protection off: everything after the first None is left out. See `class_declaration`.
    """
    own = (attributes["idempotency"],) if "idempotency" in attributes else ()
    actions = attributes.get("idempotency_actions", cls.idempotency_actions)
    of_action = (actions[name],) if name in actions else ()
    layers = (*own, *of_action, *_declared_layers(cls, cls.idempotency))
    return layers[: layers.index(None)] if None in layers else layers


@lru_cache(maxsize=1024)
def _declared_layers(cls: Any, nearest: Declared) -> tuple[Any, ...]:
    """Return the `idempotency` attribute of the class and of each base class that sets it, in MRO order.

    `nearest` is part of the cache key only for tests: a test that replaces the attribute would otherwise get an old
    result.
    """
    return tuple(vars(base)["idempotency"] for base in cls.__mro__ if "idempotency" in vars(base))
