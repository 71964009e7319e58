"""What replaces Django's ATOMIC_REQUESTS for a protected view?

# Note [How the package replaces ATOMIC_REQUESTS]
With ATOMIC_REQUESTS, Django runs each view inside `atomic(alias)`. A key would then be claimed in a savepoint, and the
failure of a later COMMIT would go unnoticed. The package therefore opens the transaction instead of Django. The
`_non_atomic_requests` attribute of a protected callback stops Django from opening one in the key table's database. For
unprotected requests to that callback, the package itself opens an `atomic(alias)` block.

Django does not allow `async def` views under ATOMIC_REQUESTS. The attribute bypasses that check, so the package runs
such views in a transaction as well. Otherwise, a request that fails partway through would leave half of its writes
behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from operator import itemgetter
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.db import connections

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, Options, place_of_keys
from ..execution.bridge import in_thread, without_bridge_above
from ..execution.memory import standing_in

OPENED = "_idempotency_opened"
"""Django's request has this attribute while a whole view runs in the transaction that Django would have opened."""


class TakenOver(set[str]):
    """The `_non_atomic_requests` of a protected view: the aliases for which Django does not open a transaction.

    See Note [How the package replaces ATOMIC_REQUESTS]. The set contains only the aliases that the project excluded
    with `non_atomic_requests`. The key table's alias is computed on each use: a router may choose a different alias for
    each request, and the settings are not always ready when the view is imported.
    """

    def __init__(self, opted_out: Iterable[str], layers: Callable[[], tuple[Idempotency, ...]]) -> None:
        super().__init__(opted_out)
        self.layers = layers

    def alias(self) -> str | None:
        """Return the alias of the database whose transaction is opened by the package rather than by Django.

        Returns None for a view with `backend`, which must not run in a transaction.
        """
        return place_of_keys(*self.layers()).alias()

    def __contains__(self, alias: object) -> bool:
        return super().__contains__(alias) or alias == self.alias()


def take_over(view: Any, layers: Callable[[], tuple[Idempotency, ...]]) -> None:
    """Mark a protected callback so that Django does not open a transaction in the key table's database."""
    view._non_atomic_requests = TakenOver(getattr(view, "_non_atomic_requests", ()), layers)


def as_django_would(request: Any, options: Options | None = None) -> str | None:
    """Return the alias on which Django would have opened a transaction if the view were not protected.

    Pass the alias to `standing_in`.

    Args:
        options: the options of a protected request. If its key is in the database whose transaction was taken over,
            that transaction is opened with the claim, and this function returns None. The options of a single handler
            or request can name another database or a backend.
    """
    mark = getattr(_callback(request), "_non_atomic_requests", None)
    if isinstance(mark, TakenOver) and under_atomic_requests() and not hasattr(request, OPENED):
        alias = mark.alias()
        if options is not None and alias == options.runner.alias():
            return None
        if alias and not set.__contains__(mark, alias) and connections[alias].settings_dict["ATOMIC_REQUESTS"]:
            return alias
    return None


def whole_if(passes: Callable[[Any], bool], view: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a class-based view's callback to open Django's transaction for the requests that `passes` accepts.

    Access mixins and the class's own `dispatch` run inside the transaction, as they do without the package.
    """

    @wraps(view)
    def called(request: Any, *args: Any, **kwargs: Any) -> Any:
        # If another view has called this one, the request has `OPENED` already.
        if not under_atomic_requests() or hasattr(request, OPENED) or not passes(request):
            return view(request, *args, **kwargs)

        def whole() -> Any:
            setattr(request, OPENED, True)
            try:
                return view(request, *args, **kwargs)
            finally:
                delattr(request, OPENED)

        return standing_in(as_django_would(request), whole)

    # The mark is for a real `async def`. Django's own asynchronous callbacks already have it, and `wraps` copies it.
    return markcoroutinefunction(called) if iscoroutinefunction(view) else called


def under_atomic_requests() -> bool:
    """Return whether any database has ATOMIC_REQUESTS. Most projects have no such database."""
    return any(map(itemgetter("ATOMIC_REQUESTS"), connections.settings.values()))


def _callback(request: Any) -> Any:
    # Some tests set a `resolver_match` without `func`.
    return getattr(getattr(request, "resolver_match", None), "func", None)


def refuse_asynchronous(request: Any) -> None:
    """Raise if an asynchronous class with a decorated `dispatch` needs the transaction that ATOMIC_REQUESTS opens."""
    callback = _callback(request)
    if iscoroutinefunction(callback) and as_django_would(request) is not None:
        raise IdempotencyConfigurationError(
            f"{callback.__qualname__} has `async def` handlers, and dispatch() only makes their coroutine: the "
            "transaction of ATOMIC_REQUESTS would end before that runs. Use IdempotencyMixin instead of decorating "
            "dispatch()."
        )


async def awaited_as_django_would(
    request: Any, options: Options | None, view: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Await an `async def` view in a transaction on the alias that `as_django_would` returns.

    Django does not allow ATOMIC_REQUESTS for such views, but our mark bypasses that check. The view runs in the same
    way as a protected one: see `in_thread`.
    """
    alias = as_django_would(request, options)
    if alias is None:
        return await view(*args, **kwargs)

    def run(form: Callable[..., Any]) -> Any:
        return standing_in(alias, partial(without_bridge_above, partial(form, *args, **kwargs)))

    return await in_thread(run, view)
