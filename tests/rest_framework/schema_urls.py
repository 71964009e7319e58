"""Views whose OpenAPI schema the tests look at."""

from __future__ import annotations

from typing import Any

from django.urls import include, path
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.decorators import action, api_view
from rest_framework.generics import CreateAPIView
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import ModelViewSet

from django_idempotency import Idempotency, idempotent
from django_idempotency.rest_framework import IdempotencyMixin
from django_idempotency.rest_framework import schema as ours
from tests.rest_framework.api_urls import OrderSerializer
from tests.shopapp.models import Order


class OrderViewSet(IdempotencyMixin, ModelViewSet):
    queryset = Order.objects.all()
    serializer_class = OrderSerializer
    idempotency = Idempotency(ttl=3600)
    idempotency_actions = {"partial_update": None}

    @action(detail=False, methods=["post"], idempotency=Idempotency(required=False, in_progress_status=429))
    def optional(self, request: Any) -> Response: ...

    @action(detail=False, methods=["post", "put"], idempotency={"methods": ["PUT"], "mismatch_status": 409})
    def two(self, request: Any) -> Response: ...

    @action(detail=False, methods=["post"], idempotency=Idempotency(lease=60, in_progress_status=202))
    def leased(self, request: Any) -> Response: ...


class Plain(CreateAPIView):
    serializer_class = OrderSerializer


@extend_schema(request=OrderSerializer, responses={(201, "text/csv"): OpenApiTypes.STR, 422: OpenApiTypes.OBJECT})
@api_view(["POST"])
@idempotent
def function(request: Any) -> Response: ...


class OwnSchema(AutoSchema):
    def get_operation_id(self) -> str:
        return "own"


@extend_schema_view(
    post=extend_schema(
        parameters=[OpenApiParameter("idempotency-key", str, OpenApiParameter.HEADER, description="mine")],
        responses={201: OrderSerializer, 409: OpenApiTypes.OBJECT},
    )
)
class Declared(IdempotencyMixin, CreateAPIView):
    serializer_class = OrderSerializer
    schema = OwnSchema()


class MixedSchema(ours.AutoSchema, AutoSchema):
    def get_operation_id(self) -> str:
        return "mixed"


@extend_schema_view(post=extend_schema(responses={201: OrderSerializer}))
class Mixed(IdempotencyMixin, CreateAPIView):
    serializer_class = OrderSerializer
    schema = MixedSchema()


class Dynamic(IdempotencyMixin, CreateAPIView):
    serializer_class = OrderSerializer

    def get_idempotency_options(self) -> Any:
        raise AssertionError("asked without a request")


router = SimpleRouter()
router.register("orders", OrderViewSet)
urlpatterns = [
    path("", include(router.urls)),
    path("plain/", Plain.as_view()),
    path("function/", function),
    path("declared/", Declared.as_view()),
    path("mixed/", Mixed.as_view()),
    path("dynamic/", Dynamic.as_view()),
]
