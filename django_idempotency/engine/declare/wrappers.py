"""Which decorators are applied to a callable, and which are allowed below `idempotent`?

Those that do not check the caller are allowed. Every decorator that uses `functools.wraps` is found; a check in the
view's own code is not.

# Note [The package recognizes a wrapper by its code object]
`functools.wraps` copies the name of a function to its wrapper, so the wrapper's name does not say which decorator made
it. But `wraps` doesn't change the wrapper's `__globals__` and `__code__`. `__globals__` contains the name of the
decorator's module, and the `co_qualname` of `__code__` begins with the decorator's name. Together, they identify the
decorator. All wrappers made from middleware classes share one code object, and all wrappers made from context managers
share another. Both kinds are named after the class of the middleware or context manager.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ..conf import get_settings

VIEWS = "django.views.decorators"
PROXY = "ObjectProxy"
"""The base class of wrapt's proxies, which tracing packages put around functions. It is recognized by its name alone,
because some packages have their own copy of wrapt."""
PAGINATORS = ("PaginatorOperation", "AsyncPaginatorOperation")
HARMLESS = frozenset(
    {
        "asgiref.sync.AsyncToSync",
        "asgiref.sync.SyncToAsync",
        "django.db.transaction.Atomic",
        "django.middleware.http.ConditionalGetMiddleware",
        "django.views.generic.base.View.as_view",  # `as_view` copies `__wrapped__` from `dispatch`
        *(f"{VIEWS}.cache.{name}" for name in ("cache_control", "never_cache")),
        *(f"{VIEWS}.clickjacking.xframe_options_{name}" for name in ("deny", "sameorigin")),
        f"{VIEWS}.common.no_append_slash",
        f"{VIEWS}.csrf.csrf_exempt",
        *(f"{VIEWS}.debug.{name}" for name in ("sensitive_post_parameters", "sensitive_variables")),
        *(f"{VIEWS}.http.{name}" for name in ("condition", "require_http_methods")),
        f"{VIEWS}.vary.vary_on_headers",
        "drf_spectacular.drainage.isolate_view_method",
        "ninja.pagination._inject_pagination",
        *(f"ninja_extra.pagination.operations.{name}.get_view_function" for name in PAGINATORS),
        PROXY,
    }
)
"""Decorators allowed below the protection: they don't look at the caller, and all that they change (status, body,
headers) is replayed. Some, such as `condition` and `require_http_methods`, can answer in place of the view.
"""
NOT_REPLAYED = frozenset(
    {
        "django.middleware.gzip.GZipMiddleware",  # the next client may not read a compressed body
        f"{VIEWS}.clickjacking.xframe_options_exempt",
        f"{VIEWS}.csp._make_csp_decorator",  # creates both of Django 6's CSP decorators
        f"{VIEWS}.csrf._EnsureCsrfCookie",
    }
)
"""Django's decorators that depend on the current client, or that tell a middleware something through an attribute.
Neither works for a stored response, so these decorators belong above the protection."""
OURS = "django_idempotency."


def unwrapped(function: Any) -> Iterator[Any]:
    """Yield the callable and everything that it wraps with `functools.wraps` or `partial`, outermost first."""
    seen = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = function.func if isinstance(function, partial) else getattr(function, "__wrapped__", None)


def with_call(function: Any) -> Iterator[Any]:
    """Yield what `unwrapped` yields, then the innermost object's `__call__`, because a view can be an object."""
    yield from unwrapped(function)
    # Ruff's B004 recommends `callable()`, but the method itself is needed.
    yield from unwrapped(getattr(type(innermost(function)), "__call__", None))  # noqa: B004


def innermost(function: Any) -> Any:
    """Return the function underneath all the decorators. See `unwrapped`."""
    *_, last = unwrapped(function)
    return last


def dotted_name(function: Any) -> str:
    """Return the dotted name of the innermost function. If it is an object without a name, return its class's name."""
    inner = innermost(function)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{named.__module__}.{named.__qualname__}"


def method_name(view: Any) -> str:
    """Return the name of a method, or an empty string for a function outside of a class body."""
    owner, _, name = str(getattr(view, "__qualname__", "")).rpartition(".")
    return name if owner and not owner.endswith("<locals>") else ""


def unknown_wrapper(function: Any, *, below: bool = False) -> str | None:
    """Return the dotted name of a function's first decorator that is not allowed, or None.

    Args:
        below: look only below this package's own innermost decorator.
    """
    names = [_name(wrapper) for level in with_call(function) for wrapper in _wrappers(level)]
    ours = [index for index, name in enumerate(names) if name.startswith(OURS)]
    for name in names[ours[-1] + 1 :] if below and ours else names:
        if not (name.startswith(OURS) or name in HARMLESS or name in get_settings().harmless_decorators):
            return name
    return None


def _wrappers(level: Any) -> Iterator[Any]:
    """Yield the callable if it is a wrapper. For `method_decorator`, yield the wrappers that its decorators make."""
    if isinstance(level, partial) or not hasattr(level, "__wrapped__"):
        return
    if _name(level) != "django.utils.decorators._multi_decorate":
        yield level
        return
    for decorator in reversed(_enclosed(level)["decorators"]):
        # Decorating an empty function is safe, because `method_decorator` does the same.
        *made, _ = unwrapped(decorator(_dummy))
        yield from made


def _dummy(*args: Any, **kwargs: Any) -> None:
    """Do nothing. `_wrappers` applies decorators to this function to find out which wrappers they create."""


def _name(wrapper: Any) -> str:
    """Return the name of a wrapper's decorator. See Note [The package recognizes a wrapper by its code object]."""
    if any(base.__name__ == PROXY for base in type(wrapper).__mro__):
        return PROXY
    if not hasattr(wrapper, "__code__"):
        return _of_class(type(wrapper))
    decorator = wrapper.__code__.co_qualname.partition(".<locals>")[0]
    name = f"{wrapper.__globals__.get('__name__')}.{decorator}"
    if name == "django.utils.decorators.make_middleware_decorator":
        return _of_class(type(_enclosed(_enclosed(wrapper)["_pre_process_request"])["middleware"]))
    if name == "contextlib.ContextDecorator.__call__":
        return _of_class(type(_enclosed(wrapper)["self"]))
    return name


def _of_class(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _enclosed(function: Any) -> dict[str, Any]:
    """Return the variables in the closure of a function."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}
