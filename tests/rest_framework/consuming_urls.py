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


class Base(APIView):
    parser_classes = [Exotic, StreamingJSON, parsers.FormParser, parsers.MultiPartParser]
    permission_classes = [Looks]
    authentication_classes = []

    def post(self, request: Any, *args: Any) -> Response:
        Order.objects.create()
        return Response({"fields": sorted(request.data)}, status=201)


class ByMixin(IdempotencyMixin, Base):
    pass


class ByDecorator(Base):
    @idempotent
    def post(self, request: Any) -> Response:
        return super().post(request)


class ByField(Base):
    @idempotent(fingerprint=("a",))
    def post(self, request: Any) -> Response:
        return super().post(request)


urlpatterns = [
    path("mixin", ByMixin.as_view()),
    path("decorator", ByDecorator.as_view()),
    path("field", ByField.as_view()),
]
