"""Views whose permission looks at the parsed body before the handler does."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.urls import path
from rest_framework import parsers, permissions
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency import idempotent
from django_idempotency.rest_framework import IdempotencyMixin
from tests.shopapp.models import Order


class Looks(permissions.BasePermission):
    def has_permission(self, request: Any, view: Any) -> bool:
        return request.data is not None


class Exotic(parsers.BaseParser):
    """Reads the stream itself, as parsers of XML or MessagePack do, and returns more than JSON knows."""

    media_type = "text/plain"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        raw = stream.read()
        return {"a": raw, "b": Decimal(len(raw))}


class StreamingJSON(parsers.BaseParser):
    """As the framework's own was before 3.18."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return parsers.JSONParser().parse(stream, media_type, parser_context)


class Opaque(parsers.BaseParser):
    media_type = "application/opaque"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        stream.read()
        return object()


class Aliases(parsers.BaseParser):
    """Reads the stream and makes lists that share their items, as aliases of YAML do: `9 6` is six deep."""

    media_type = "application/x-aliases"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        width, depth = stream.read().split()[:2]
        value: Any = "x"
        for _ in range(int(depth)):
            value = [value] * int(width)
        return {"a": value}


class Base(APIView):
    parser_classes = [Aliases, Exotic, Opaque, StreamingJSON, parsers.FormParser, parsers.MultiPartParser]
    permission_classes = [Looks]
    authentication_classes = []

    def post(self, request: Any, *args: Any) -> Response:
        Order.objects.create()
        return Response({"fields": sorted(request.data)}, status=201)


class ByMixin(IdempotencyMixin, Base):
    def patch(self, request: Any) -> Response:
        return self.post(request)


class ByDecorator(Base):
    @idempotent
    def post(self, request: Any) -> Response:
        return super().post(request)


class ByField(Base):
    @idempotent(fingerprint=("a",))
    def post(self, request: Any) -> Response:
        return super().post(request)


class Upload(IdempotencyMixin, Base):
    parser_classes = [parsers.FileUploadParser]


urlpatterns = [
    path("mixin", ByMixin.as_view()),
    path("decorator", ByDecorator.as_view()),
    path("field", ByField.as_view()),
    path("upload", Upload.as_view()),
]
