"""Protect each GraphQL mutation: see recipes.md.

tests/acceptance/test_graphql.py runs this file as `shop.mutations`.
"""

import json
from dataclasses import is_dataclass
from enum import Enum

from django.core.serializers.json import DjangoJSONEncoder
from graphql import GraphQLError

from django_idempotency import NotRun, run_once
from django_idempotency.keys import caller_scope, from_header

read_key = from_header("Idempotency-Key")


def mutate_once(request, info, work, arguments, **options):
    if not request.user.is_authenticated:
        raise GraphQLError("Log in.")
    if (key := read_key(request)) is None:
        raise GraphQLError("Send the header Idempotency-Key.")
    place = ".".join(str(name) for name in info.path.as_list())
    try:
        return run_once(
            work,
            operation=f"mutation {info.field_name}",
            scope=caller_scope(request, configured=True),
            key=f"{key}:{request.graphql_entry}:{place}",
            payload=json.dumps(arguments, default=plain, sort_keys=True).encode(),
            **options,
        ).value
    except NotRun as error:
        raise GraphQLError(str(error), extensions={"code": type(error).__name__}) from error


def plain(value):
    if isinstance(value, Enum):
        return value.name
    return vars(value) if is_dataclass(value) else DjangoJSONEncoder().default(value)


class CountsEntries:
    """Tell the position of each operation in a batch. Put it in front of the library's view."""

    def execute_single(self, request, **kwargs):  # strawberry
        count(request)
        return super().execute_single(request=request, **kwargs)

    def get_response(self, request, *args):  # graphene
        count(request)
        return super().get_response(request, *args)


def count(request):
    request.graphql_entry = getattr(request, "graphql_entry", -1) + 1
