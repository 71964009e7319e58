"""Protect GraphQL requests: see recipes.md.

tests/acceptance/test_graphql.py runs this file.
"""

import json

from django.http import HttpResponseNotAllowed
from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse
from shop.schema import execute  # your library's own view: GraphQLView.as_view(schema=schema)

from django_idempotency import idempotent

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
PERSISTED = {}  # the documents that your library has stored, by their SHA-256


@idempotent(operation="mutation")
def protected(request):
    response = execute(request)
    if response.status_code >= 400 or any("errors" in result for result in listed(json.loads(response.content))):
        response.status_code = 500  # rolls back what the resolvers have done, and a retry can use the key
    return response


def graphql(request):
    if only_queries(request):
        return execute(request)
    return protected(request) if request.method == "POST" else HttpResponseNotAllowed(["POST"])


def only_queries(request):
    try:
        return all(is_query(entry) for entry in entries(request))
    except (AttributeError, GraphQLError, KeyError, RecursionError, TypeError, ValueError):
        return False  # what the guard can't read may be a mutation


def entries(request):
    """Each place that a library may take an operation from: the URL, and the body."""
    found = [request.GET.dict()] if request.GET else []
    if request.method == "GET":
        return found
    if request.content_type not in FORMS:
        return found + listed(json.loads(request.body))
    if "operations" in request.POST:  # an upload of files
        found += listed(json.loads(request.POST["operations"]))
    return found if "operations" in request.POST and "query" not in request.POST else [*found, request.POST.dict()]


def is_query(entry):
    document = entry.get("query")
    if not document:
        extensions = entry["extensions"]
        extensions = json.loads(extensions) if isinstance(extensions, str) else extensions
        document = PERSISTED[extensions["persistedQuery"]["sha256Hash"]]
    nodes = parse(document).definitions
    return {node.operation for node in nodes if isinstance(node, OperationDefinitionNode)} == {OperationType.QUERY}


def listed(value):
    return value if isinstance(value, list) else [value]
