"""Which decorators may stand below the protection: a short list of those that decide nothing about who is calling.

A decorator is seen if it uses `functools.wraps`. What a view checks in its own code cannot be seen.

# Note [A wrapper is known by its code]
A name can be copied, and `functools.wraps` does that. So a wrapper is compared by its code, which is a constant in the
code of the decorator that made it. Two of Django's own makers share one code for many decorators. Their wrappers are
told apart by the class of the middleware or of the context manager that they enclose.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ContextDecorator
from functools import lru_cache, partial
from types import CodeType
from typing import Any

from django.utils import decorators
from django.utils.module_loading import import_string
from django.views import View

from ...exceptions import IdempotencyConfigurationError
from ..conf import get_settings
from .callables import unwrapped

VIEWS = "django.views.decorators"
HARMLESS = (
    "asgiref.sync.AsyncToSync",
    "asgiref.sync.SyncToAsync",
    "django.db.transaction.Atomic",
    f"{VIEWS}.cache.cache_control",
    f"{VIEWS}.cache.never_cache",
    *(f"{VIEWS}.clickjacking.xframe_options_{name}" for name in ("deny", "exempt", "sameorigin")),
    f"{VIEWS}.common.no_append_slash",
    f"{VIEWS}.csp._make_csp_decorator",  # what both decorators of Django 6 return is made by it
    f"{VIEWS}.csrf.csrf_exempt",
    f"{VIEWS}.csrf.ensure_csrf_cookie",
    f"{VIEWS}.debug.sensitive_post_parameters",
    f"{VIEWS}.debug.sensitive_variables",
    f"{VIEWS}.gzip.gzip_page",
    f"{VIEWS}.http.condition",
    f"{VIEWS}.http.conditional_page",
    f"{VIEWS}.http.require_http_methods",
    f"{VIEWS}.vary.vary_on_headers",
    "drf_spectacular.drainage.isolate_view_method",
)
"""Some answer before the view (`condition`, `require_http_methods`), but they do not look at the caller."""


def unknown_wrapper(function: Any, *, below: bool = False) -> str | None:
    """The dotted name of a decorator of this function that is not on the list, or None.

    Args:
        below: only those below the innermost protection of ours count.
    """
    wrappers = [wrapper for level in unwrapped(function) for wrapper in _wrappers(level)]
    ours = [index for index, wrapper in enumerate(wrappers) if _is_ours(wrapper)]
    for wrapper in wrappers[ours[-1] + 1 :] if below and ours else wrappers:
        maker = _maker(wrapper)
        if not _is_ours(wrapper) and maker not in _known() and not _is_proxy(wrapper):
            return _name(maker, wrapper)
    return None


def _wrappers(level: Any) -> Iterator[Any]:
    """The wrapper at this level; or those that `method_decorator` applies on each call, the outermost first."""
    if isinstance(level, partial) or not hasattr(level, "__wrapped__"):
        return
    if getattr(level, "__code__", None) not in METHOD_DECORATOR:
        yield level
        return
    for decorator in reversed(_enclosed(level)["decorators"]):
        *made, _ = unwrapped(decorator(_dummy))  # as Django itself does it, when it makes the method
        yield from made


def _dummy(*args: Any, **kwargs: Any) -> None:
    """Is decorated to see what a decorator makes."""


def _maker(wrapper: Any) -> Any:
    """What stands for the decorator that has made this wrapper. See Note [A wrapper is known by its code]."""
    code = getattr(wrapper, "__code__", None)
    if code in MIDDLEWARE:
        return type(_enclosed(_enclosed(wrapper)["_pre_process_request"])["middleware"])
    if code in CONTEXT:
        return type(_enclosed(wrapper)["self"])
    return type(wrapper) if code is None else code


def _known() -> frozenset[Any]:
    # No wrapper comes from a module that the project has not imported.
    names = (*HARMLESS, *get_settings().harmless_decorators)
    return _makers(tuple(name for name in names if name.rpartition(".")[0] in sys.modules))


@lru_cache(maxsize=8)
def _makers(names: tuple[str, ...]) -> frozenset[Any]:
    """What stands for each of these decorators, in the words of `_maker`."""
    makers: set[Any] = set(_codes(View.as_view.__code__))  # its result has the attributes of a decorated `dispatch`
    for name in names:
        try:
            decorator = import_string(name)
        except ImportError as error:
            raise IdempotencyConfigurationError(
                f"IDEMPOTENCY['HARMLESS_DECORATORS']: {name!r} cannot be imported: {error}. Correct the dotted name."
            ) from error
        if isinstance(decorator, type):
            makers.add(decorator)
        elif "middleware_class" in (enclosed := _enclosed(decorator)):
            makers.add(enclosed["middleware_class"])
        else:
            _refuse_shared(name, decorator)
            makers.update(_codes(decorator.__code__))
    return frozenset(makers)


def _refuse_shared(name: str, decorator: Any) -> None:
    module = decorator.__globals__["__name__"]
    if module.partition(".")[0] != name.partition(".")[0]:
        raise IdempotencyConfigurationError(
            f"IDEMPOTENCY['HARMLESS_DECORATORS'] names {name!r}, which is made by {module!r}: all decorators that are "
            "made there would be allowed, too. Write this one as a function of its own."
        )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of all functions that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


METHOD_DECORATOR = frozenset(_codes(decorators._multi_decorate.__code__))  # type: ignore[attr-defined]
MIDDLEWARE = frozenset(_codes(decorators.make_middleware_decorator.__code__))
CONTEXT = frozenset(_codes(ContextDecorator.__call__.__code__))


def _enclosed(function: Any) -> dict[str, Any]:
    """What a function holds in its closure, by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def _is_ours(wrapper: Any) -> bool:
    module: str = getattr(wrapper, "__globals__", {}).get("__name__", "")
    return module.partition(".")[0] == "django_idempotency"


def _is_proxy(wrapper: Any) -> bool:
    """A proxy of wrapt, which tracing packages put around a function. By name: some packages have their own copy."""
    return any(base.__name__ == "ObjectProxy" for base in type(wrapper).__mro__)


def _name(maker: Any, wrapper: Any) -> str:
    """The dotted name by which the setting can allow the decorator."""
    if isinstance(maker, type):
        return f"{maker.__module__}.{maker.__qualname__}"
    return f"{wrapper.__globals__['__name__']}.{maker.co_qualname.partition('.<locals>')[0]}"
