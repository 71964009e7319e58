"""Views whose parsers count their calls, and read more or less than JSON."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

from django.urls import path
from rest_framework import parsers, permissions
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency import idempotent
from django_idempotency.rest_framework import IdempotencyMixin
from tests.shopapp.models import Order

CALLS: list[str] = []


class Counted(parsers.BaseParser):
    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        CALLS.append(self.media_type)
        return super().parse(stream, media_type, parser_context)


class CountedJSON(Counted, parsers.JSONParser):
    pass


class CountedForm(Counted, parsers.FormParser):
    pass


class CountedMultipart(Counted, parsers.MultiPartParser):
    pass


class XML(parsers.BaseParser):
    media_type = "application/xml"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        CALLS.append(self.media_type)
        return {item.tag: item.text for item in ElementTree.parse(stream).getroot()}


class Aliases(parsers.BaseParser):
    """Makes lists that share their items, as aliases of YAML do: `9 6` is 9 lists of 9 lists …, six deep."""

    media_type = "application/x-aliases"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        width, depth = stream.read().split()
        value: Any = "x"
        for _ in range(int(depth)):
            value = [value] * int(width)
        return value


class LeavesItToTheView(parsers.BaseParser):
    media_type = "application/raw"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return {}


class Unwraps(parsers.BaseParser):
    media_type = "application/wrapped+json"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return json.load(stream).get("payload", {})


class Nested(parsers.BaseParser):
    """Nests deeper than a program can walk, or returns what has no value."""

    media_type = "application/nested"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        value: Any = [stream.read().decode()]
        if value == ["object"]:
            return object()
        for _ in range(100_000):
            value = [value]
        return value


class OrderView(IdempotencyMixin, APIView):
    authentication_classes = []
    parser_classes = [
        CountedJSON,
        CountedForm,
        CountedMultipart,
        XML,
        Aliases,
        LeavesItToTheView,
        Unwraps,
        Nested,
    ]

    def post(self, request: Any) -> Response:
        assert request.data is not None
        return Response({"id": Order.objects.create().pk}, status=201)


class Looks(permissions.BasePermission):
    """Looks at the parsed body before the handler does: then the stream has been read."""

    def has_permission(self, request: Any, view: Any) -> bool:
        return request.data is not None


class Guarded(OrderView):
    permission_classes = [Looks]


class ByField(APIView):
    permission_classes = [Looks]

    @idempotent(fingerprint=("a",))
    def post(self, request: Any) -> Response:
        return Response({"id": Order.objects.create().pk}, status=201)


urlpatterns = [
    path("orders", OrderView.as_view()),
    path("guarded", Guarded.as_view()),
    path("field", ByField.as_view()),
]
