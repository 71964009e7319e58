"""How does each mutation of a GraphQL request run once?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, TypeVar

from django.core.serializers.json import DjangoJSONEncoder
from graphql import GraphQLError

from ..engine.execution.once import run_once
from ..exceptions import IdempotencyConfigurationError, NotRun
from ..keys import caller_scope, from_header

T = TypeVar("T")
ENTRY = "graphql_entry"
"""The attribute of Django's request that counts the operations of a batch."""


def mutate_once(
    request: Any,
    info: Any,
    work: Callable[[], T],
    arguments: Mapping[str, Any],
    *,
    header: str = "Idempotency-Key",
    scope: str | None = None,
    **options: Any,
) -> T:
    """Run a mutation once for each combination of request key, position in a batch, and path of the mutation.

    As with `run_once`, the mutation runs in a transaction, or in a savepoint, and a retry gets its stored result.

    Args:
        request: Django's request, whose view has `CountsEntries`.
        info: the resolver's `info`.
        work: a function that returns JSON or a saved model instance.
        arguments: the mutation's arguments, which a retry must repeat.
        header: the request header that carries the key.
        scope: the caller; default: the project's `SCOPE` for a user who is logged in.
        options: those of `run_once`, such as `ttl`.

    Raises:
        GraphQLError: there is no key or no caller, or the mutation was not run. `extensions["code"]` is then the name
            of the exception, such as "PayloadMismatch".
        IdempotencyConfigurationError: the view does not have `CountsEntries`.
    """
    if scope is None and not request.user.is_authenticated:
        raise GraphQLError("Log in.")
    if (key := from_header(header)(request)) is None:
        raise GraphQLError(f"Send the header {header}.")
    if not hasattr(request, ENTRY):
        raise IdempotencyConfigurationError(
            "mutate_once doesn't know which operation of a batch this is. Put CountsEntries before the library's view: "
            "class ShopView(CountsEntries, GraphQLView)."
        )
    place = ".".join(str(name) for name in info.path.as_list())
    try:
        return run_once(
            work,
            operation=f"mutation {info.field_name}",
            scope=caller_scope(request, configured=True) if scope is None else scope,
            key=f"{key}:{getattr(request, ENTRY)}:{place}",
            payload=json.dumps(arguments, default=_plain, sort_keys=True).encode(),
            **options,
        ).value
    except NotRun as error:
        raise GraphQLError(str(error), extensions={"code": type(error).__name__}) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    return vars(value) if is_dataclass(value) else DjangoJSONEncoder().default(value)


class CountsEntries:
    """Tells `mutate_once` the position of each operation in a batch.

    List it before the library's synchronous view: `class ShopView(CountsEntries, GraphQLView)`.
    """

    def execute_single(self, request: Any, **kwargs: Any) -> Any:  # strawberry
        _count(request)
        return super().execute_single(request=request, **kwargs)  # type: ignore[misc]

    def get_response(self, request: Any, *args: Any) -> Any:  # graphene
        _count(request)
        return super().get_response(request, *args)  # type: ignore[misc]


def _count(request: Any) -> None:
    setattr(request, ENTRY, getattr(request, ENTRY, -1) + 1)
