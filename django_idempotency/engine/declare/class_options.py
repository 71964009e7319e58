"""Options on classes: what a view's `idempotency` attribute means, nearest first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, ClassVar

from ...exceptions import IdempotencyConfigurationError
from ..conf import SAFE_METHODS, Idempotency, as_options, resolve
from ..request.pipeline import take_over
from .placement import refuse_handler
from .registry import Declaration, register

Options = Idempotency | Mapping[str, Any] | None
"""What the attribute may hold; None: not protected."""
INHERIT = Idempotency()
"""Decides nothing: the settings and the defaults apply."""


class DeclaredOptions:
    """What the two mixins have in common: the attributes, and who reads them."""

    idempotency: ClassVar[Options] = INHERIT
    idempotency_actions: ClassVar[Mapping[str, Options]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "idempotency" in vars(cls):
            cls.idempotency = checked(cls.idempotency)
        if "idempotency_actions" in vars(cls):
            cls.idempotency_actions = {name: checked(value) for name, value in cls.idempotency_actions.items()}

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        if "idempotency" in initkwargs:
            initkwargs["idempotency"] = checked(initkwargs["idempotency"])
        view: Any = super().as_view(*args, **initkwargs)  # type: ignore[misc]
        if DeclaredOptions in next(base for base in cls.__mro__ if "dispatch" in vars(base)).__bases__:
            # Django copies what decorators have set on dispatch, such as csrf_exempt. Our dispatch hides the next one.
            vars(view).update(vars(super().dispatch))  # type: ignore[misc]
        take_over(view, lambda: class_layers(cls, initkwargs))
        for method, name, handler in handlers(cls, initkwargs, getattr(view, "actions", None)):
            if (declaration := class_declaration(cls, initkwargs, name)) is not None:
                register(declaration)
                if method in _methods(declaration):
                    refuse_handler(handler)
        return view

    def get_idempotency_options(self) -> Options:
        """The options for this request, asked after authentication; None: not protected.

        Override it to decide by `self.request` or `self.action`.
        """
        method = getattr(getattr(self, "request", None), "method", None)
        name = getattr(self, "action", None) or str(method).lower()
        layers = class_layers(type(self), vars(self), name)
        return resolve(*layers) if layers else None

    def options_for(self, handler: Callable[..., Any], method: str) -> Idempotency | None:
        """The options of the handler for this request; None: not protected."""
        given = checked(self.get_idempotency_options())
        if given is None:
            return None
        options = resolve(given)
        if decides_by_request(type(self)) and method in options.methods:
            refuse_handler(handler)  # as_view() could not know
        return options


def checked(value: Options) -> Idempotency | None:
    """Raises `IdempotencyConfigurationError` for options that cannot work."""
    return None if value is None else as_options(value)


def class_declaration(cls: Any, attributes: Mapping[str, Any], name: str) -> Declaration | None:
    """What a class with a mixin declares; None: not protected, or no mixin.

    Args:
        attributes: those of the view, or those that `as_view()` will give it.
        name: of the handler: a verb, or the action of a viewset.
    """
    layers = class_layers(cls, attributes, name) if issubclass(cls, DeclaredOptions) else ()
    return Declaration(layers, cls, decides_by_request(cls)) if layers else None


def decides_by_request(cls: Any) -> bool:
    """Whether a class with a mixin may decide otherwise for a request."""
    own = getattr(cls, "get_idempotency_options", DeclaredOptions.get_idempotency_options)
    return own is not DeclaredOptions.get_idempotency_options


def _methods(declaration: Declaration) -> Collection[str]:
    with suppress(IdempotencyConfigurationError):  # its options contradict each other: E007 reports that
        return declaration.options.methods
    return ()


def handlers(
    cls: Any, attributes: Mapping[str, Any], actions: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str, Any]]:
    """The unsafe methods that a view class answers, such as POST, each with its handler's name and its handler.

    Args:
        actions: those of a viewset: verb to name.
    """
    for verb in attributes.get("http_method_names", cls.http_method_names):
        name = verb if actions is None else actions.get(verb, "")
        if verb.upper() not in SAFE_METHODS and hasattr(cls, name):
            yield verb.upper(), name, getattr(cls, name)


def class_layers(cls: Any, attributes: Mapping[str, Any], name: str | None = None) -> tuple[Any, ...]:
    """The option layers of a class with a mixin, nearest first, up to the first None. Empty: not protected.

    The order is: the view's own attribute, the handler, the class, its base classes. See `class_declaration`.
    """
    own = (attributes["idempotency"],) if "idempotency" in attributes else ()
    actions = cls.idempotency_actions
    of_action = (actions[name],) if name in actions else ()
    layers = (*own, *of_action, *_declared_layers(cls, cls.idempotency))
    return layers[: layers.index(None)] if None in layers else layers


@lru_cache(maxsize=1024)
def _declared_layers(cls: Any, nearest: Options) -> tuple[Any, ...]:
    """The `idempotency` attributes along the MRO.

    `nearest` is part of the cache's key, because a test may replace the attribute of a class.
    """
    return tuple(vars(base)["idempotency"] for base in cls.__mro__ if "idempotency" in vars(base))
