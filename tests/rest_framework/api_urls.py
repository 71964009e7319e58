"""Views of the REST framework that the tests of the mixin and the decorator send requests to."""

from __future__ import annotations

import sys
from typing import Any

from django.db import connection, transaction
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.urls import include, path
from django.utils.decorators import method_decorator
from rest_framework import parsers, permissions, renderers, serializers, throttling
from rest_framework.authentication import SessionAuthentication, TokenAuthentication
from rest_framework.decorators import action, api_view
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView, exception_handler
from rest_framework.viewsets import ModelViewSet

from django_idempotency import Idempotency, idempotent
from django_idempotency.rest_framework import IdempotencyMixin
from tests.shopapp.models import Ledger, Order

CALLS: list[Any] = []
AFTER_ROLLBACK: list[Any] = []


def order(**told: Any) -> Response:
    return Response({"id": Order.objects.create().pk, **told}, status=201)


def create(self: Any, request: Any) -> Response:
    """The handler of views of which something else is of interest."""
    return order()


class OrderSerializer(serializers.ModelSerializer):
    class Meta:
        model = Order
        fields = ["id", "reference", "amount"]


class CountingRenderer(renderers.JSONRenderer):
    def render(self, *args: Any, **kwargs: Any) -> Any:
        CALLS.append(("render", connection.in_atomic_block))
        return super().render(*args, **kwargs)


class OrderViewSet(IdempotencyMixin, ModelViewSet):
    queryset = Order.objects.order_by("pk")
    serializer_class = OrderSerializer
    idempotency = {"ttl": 3600}
    idempotency_actions = {"partial_update": None}
    renderer_classes = [CountingRenderer]

    def finalize_response(self, *args: Any, **kwargs: Any) -> Any:
        CALLS.append(("finalize", connection.in_atomic_block))
        return super().finalize_response(*args, **kwargs)

    @action(detail=False, methods=["post"], idempotency=Idempotency(store_body=False))
    def secret(self, request: Any) -> Response:
        return order()

    @action(detail=False, methods=["post"], idempotency={"required": False})
    def optional(self, request: Any) -> Response:
        return order()

    @action(detail=False, methods=["post"], idempotency=None)
    def preview(self, request: Any) -> Response:
        return order()


class FailsAfterCommit(IdempotencyMixin, APIView):
    def post(self, request: Any) -> Response:
        transaction.on_commit(lambda: get_object_or_404(Ledger, pk=0))
        return order()


class Fails(IdempotencyMixin, APIView):
    """Write, then raise what the request names."""

    errors = {"invalid": lambda: ValidationError({"amount": ["wrong"]}), "gone": lambda: Http404("gone")}

    def post(self, request: Any) -> Response:
        Order.objects.create()
        CALLS.append("run")
        make_error = self.errors[request.query_params["error"]]
        raise make_error()

    def get_exception_handler(self) -> Any:
        def handler(error: Exception, context: Any) -> Any:
            CALLS.append("handled")
            assert sys.exc_info()[1] is error  # what logger.exception() would show
            Ledger.objects.create(entry=f"audit {len(CALLS)}")
            for hook in AFTER_ROLLBACK:
                hook()
            return exception_handler(error, context)

        return handler


class OncePerTest(throttling.BaseThrottle):
    full = False

    def allow_request(self, request: Any, view: Any) -> bool:
        return not OncePerTest.full


async def is_allowed(request: Any, view: Any) -> bool:
    return "denied" not in request.query_params


class Guarded(IdempotencyMixin, APIView):
    authentication_classes = [TokenAuthentication]
    permission_classes = [permissions.IsAuthenticated, permissions.DjangoModelPermissions]
    throttle_classes = [OncePerTest]
    queryset = Order.objects.all()
    idempotency = Idempotency(may_replay=is_allowed)
    post = create


class Decorated(APIView):
    @idempotent
    def post(self, request: Any) -> Response:
        return order()

    @method_decorator(idempotent)
    def put(self, request: Any) -> Response:
        return order()


@api_view(["POST"])
@idempotent
def function(request: Any) -> Response:
    return order(read=request.data)


class Upload(IdempotencyMixin, APIView):
    authentication_classes = [SessionAuthentication]
    parser_classes = [parsers.MultiPartParser, parsers.JSONParser]

    def post(self, request: Any) -> Response:
        Order.objects.create()
        return Response({name: file.size for name, file in request.FILES.items()})


class Dynamic(IdempotencyMixin, APIView):
    post = create

    def get_idempotency_options(self) -> Any:
        if "off" in self.request.query_params:
            return None
        return {"required": False} if "optional" in self.request.query_params else super().get_idempotency_options()


class Browsable(IdempotencyMixin, APIView):
    """Its page asks the database after the exception handler has marked the rollback."""

    class Renderer(renderers.BrowsableAPIRenderer):
        def render(self, *args: Any, **kwargs: Any) -> Any:
            CALLS.append(Order.objects.count())
            return super().render(*args, **kwargs)

    renderer_classes = [Renderer]

    def post(self, request: Any) -> Response:
        Order.objects.create()
        raise ValidationError("no")


router = SimpleRouter()
router.register("orders", OrderViewSet)
urlpatterns = [
    path("", include(router.urls)),
    path("fails/after/commit/", FailsAfterCommit.as_view()),
    path("fails/", Fails.as_view()),
    path("guarded/", Guarded.as_view()),
    path("decorated/", Decorated.as_view()),
    path("function/", function),
    path("upload/", Upload.as_view()),
    path("dynamic/", Dynamic.as_view()),
    path("browsable/", Browsable.as_view()),
]
