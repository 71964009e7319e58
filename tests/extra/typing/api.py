"""Views of the REST framework and operations of Django Ninja."""

from typing import assert_type

from django.http import HttpRequest
from ninja import NinjaAPI
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_idempotency import Idempotency, idempotent
from django_idempotency.ninja import idempotent_operation
from django_idempotency.rest_framework import IdempotencyMixin

api = NinjaAPI()


class OrderViewSet(IdempotencyMixin, ViewSet):
    idempotency = Idempotency(wait=5)
    idempotency_actions = {"partial_update": None, "create": Idempotency(ttl=60), "update": {"ttl": 60}}

    def create(self, request: Request) -> Response:
        return Response({})

    @action(detail=True, methods=["post"], idempotency=Idempotency(required=False))
    def cancel(self, request: Request, pk: str) -> Response:
        return Response({"pk": pk})


class OrderView(APIView):
    @idempotent(wait=1)
    def post(self, request: Request, pk: int) -> Response:
        return Response({"pk": pk})


@api.post("/orders")
@idempotent_operation(wait=1)
def create_order(request: HttpRequest, amount: int) -> dict[str, int]:
    return {"amount": amount}


def the_signatures_are_kept(request: Request, plain: HttpRequest) -> None:
    assert_type(OrderViewSet().create(request), Response)
    assert_type(OrderView().post(request, pk=1), Response)
    assert_type(create_order(plain, 1), dict[str, int])
