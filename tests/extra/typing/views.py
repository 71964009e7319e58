"""Views of plain Django: the decorator leaves their signatures as they are."""

from datetime import timedelta
from typing import assert_type

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.decorators import method_decorator
from django.views import View

from django_idempotency import Idempotency, IdempotentHttpRequest, Operation, get_operation, idempotent
from django_idempotency.keys import from_header
from django_idempotency.views import IdempotencyMixin


@idempotent
def bare(request: HttpRequest, pk: int) -> JsonResponse:
    return JsonResponse({"pk": pk})


@idempotent(ttl=timedelta(days=7), wait=5, scope=lambda request: "everybody", key=from_header("X-Event"))
def with_options(request: HttpRequest, *, slug: str = "") -> HttpResponse:
    return HttpResponse(slug)


@idempotent
async def asynchronous(request: HttpRequest, pk: int) -> JsonResponse:
    return JsonResponse({"pk": pk})


def charge(amount: int, *, idempotency_key: str) -> dict[str, str]:
    return {"id": idempotency_key, "amount": str(amount)}


async def acharge(amount: int, *, idempotency_key: str) -> dict[str, str]:
    return charge(amount, idempotency_key=idempotency_key)


def look_up(operation: Operation) -> HttpResponse | None:
    return HttpResponse(operation.derive_key("charge"))


@idempotent(lease=timedelta(minutes=2), on_abandoned="hold", operation="charge", reconcile=look_up)
def leased(request: IdempotentHttpRequest, amount: int) -> HttpResponse:
    assert_type(request.idempotency, Operation)
    operation = get_operation(request)
    assert_type(operation, Operation)
    charged = operation.call("charge", charge, amount, idempotency_key=operation.derive_key("charge"))
    assert_type(charged, dict[str, str])
    assert_type(operation.write("count", len, [charged]), int)
    return JsonResponse(charged)


class OrderView(IdempotencyMixin, View):
    idempotency = Idempotency(wait=5)

    @method_decorator(idempotent(wait=1))
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()


@idempotent(lease=120)
async def leased_and_asynchronous(request: IdempotentHttpRequest, amount: int) -> HttpResponse:
    operation = request.idempotency
    charged = await operation.acall("charge", acharge, amount, idempotency_key=operation.derive_key("charge"))
    assert_type(charged, dict[str, str])
    assert_type(await operation.awrite("count", len, [charged]), int)
    return JsonResponse(charged)


async def the_signatures_are_kept(request: HttpRequest, leased_request: IdempotentHttpRequest) -> None:
    assert_type(bare(request, 1), JsonResponse)
    assert_type(bare(request, pk=1), JsonResponse)
    assert_type(with_options(request, slug="a"), HttpResponse)
    assert_type(await asynchronous(request, 1), JsonResponse)
    assert_type(leased(leased_request, 1), HttpResponse)
    assert_type(await leased_and_asynchronous(leased_request, 1), HttpResponse)
    assert_type(OrderView().post(request, pk=1), HttpResponse)
