"""Protected views of the REST framework of each kind: a viewset with actions, decorated handlers, @api_view."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.urls import include, path
from django.utils.decorators import method_decorator
from rest_framework import renderers, serializers
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ModelViewSet

from django_idempotency import Idempotency, idempotent
from django_idempotency.rest_framework import IdempotencyMixin
from tests.shopapp.models import Order
from tests.views import creates, view_class

CALLS: list[Any] = []
"""What the framework was asked for, and whether inside a transaction."""


class OrderSerializer(serializers.ModelSerializer):
    class Meta:
        model = Order
        fields = ["id", "reference", "amount"]


class CountingRenderer(renderers.JSONRenderer):
    def render(self, *args: Any, **kwargs: Any) -> Any:
        CALLS.append(("render", connection.in_atomic_block))
        return super().render(*args, **kwargs)


def extra(name: str, idempotency: Any) -> Any:
    """An action that creates an order, with options of its own."""

    def act(self: Any, request: Any) -> Any:
        return creates()(request)

    act.__name__ = name
    return action(detail=False, methods=["post"], idempotency=idempotency)(act)


class OrderViewSet(IdempotencyMixin, ModelViewSet):
    queryset = Order.objects.order_by("pk")
    serializer_class = OrderSerializer
    idempotency = {"ttl": 3600}
    idempotency_actions = {"partial_update": None}
    renderer_classes = [CountingRenderer]
    secret = extra("secret", Idempotency(store_body=False))
    optional = extra("optional", {"required": False})
    preview = extra("preview", None)

    def finalize_response(self, *args: Any, **kwargs: Any) -> Any:
        CALLS.append(("finalize", connection.in_atomic_block))
        return super().finalize_response(*args, **kwargs)


@method_decorator(idempotent, name="post")
@method_decorator(idempotent, name="put")
class Decorated(view_class(APIView, post=creates(), put=creates())):
    pass


class Dynamic(view_class(IdempotencyMixin, APIView, post=creates())):
    def get_idempotency_options(self) -> Any:
        if "off" in self.request.query_params:
            return None
        return {"required": False} if "optional" in self.request.query_params else super().get_idempotency_options()


@api_view(["POST"])
@idempotent
def function(request: Any) -> Response:
    return Response({"read": request.data}, status=201)


router = SimpleRouter()
router.register("orders", OrderViewSet)
urlpatterns = [
    path("", include(router.urls)),
    path("decorated/", Decorated.as_view()),
    path("function/", function),
    path("dynamic/", Dynamic.as_view()),
]
