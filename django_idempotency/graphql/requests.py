"""How is a whole GraphQL request protected if it has a mutation?

A request runs without protection only if all its operations are known to be queries. Every other request needs a key,
because the library may run a mutation that this package cannot find or read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse

from ..engine.declare.decorators import idempotent
from ..exceptions import IdempotencyConfigurationError

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def protect_mutations(
    view: Callable[..., Any], *, persisted: Mapping[str, str] | None = None, **options: Any
) -> Callable[..., Any]:
    """Return the library's view, protected so that a request with a mutation commits only once for each key.

    The request runs in one transaction. If the response contains errors, its status becomes 500 and everything that the
    resolvers have done is rolled back. A retry then runs again.

    Args:
        view: the library's synchronous view, such as `GraphQLView.as_view(schema=schema)`.
        persisted: the documents that the library has stored, by their SHA-256.
        options: those of `idempotent`. `operation` is "mutation" by default.

    Raises:
        IdempotencyConfigurationError: the view is asynchronous.
    """
    if iscoroutinefunction(view):
        raise IdempotencyConfigurationError(
            "protect_mutations needs a synchronous view, whose response holds all errors of the resolvers."
        )

    @idempotent(**{"operation": "mutation", **options})
    def protected(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response: Any = view(request, *args, **kwargs)
        if response.status_code >= 400 or any("errors" in entry for entry in _listed(json.loads(response.content))):
            response.status_code = 500
        return response  # type: ignore[no-any-return]

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if _only_queries(request, persisted or {}):
            return view(request, *args, **kwargs)  # type: ignore[no-any-return]
        if request.method == "POST":
            return protected(request, *args, **kwargs)
        return HttpResponseNotAllowed(["POST"])

    return guarded


def _only_queries(request: HttpRequest, persisted: Mapping[str, str]) -> bool:
    try:
        return all(_is_query(entry, persisted) for entry in _entries(request))
    except (AttributeError, GraphQLError, KeyError, RecursionError, TypeError, ValueError):
        return False


def _entries(request: HttpRequest) -> Iterator[Any]:
    """Yield the contents of the URL and of the body, because a library may read an operation from either of them."""
    if request.GET:
        yield request.GET.dict()
    if request.method == "GET":
        return
    if request.content_type not in FORMS:
        yield from _listed(json.loads(request.body))
        return
    uploads = "operations" in request.POST  # file uploads
    if uploads:
        yield from _listed(json.loads(request.POST["operations"]))
    if not uploads or "query" in request.POST:
        yield request.POST.dict()


def _is_query(entry: Any, persisted: Mapping[str, str]) -> bool:
    document = entry.get("query")
    if not document:
        extensions = entry["extensions"]
        extensions = json.loads(extensions) if isinstance(extensions, str) else extensions
        document = persisted[extensions["persistedQuery"]["sha256Hash"]]
    nodes = parse(document).definitions
    return {node.operation for node in nodes if isinstance(node, OperationDefinitionNode)} == {OperationType.QUERY}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
