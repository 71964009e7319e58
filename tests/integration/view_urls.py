"""Views of every kind that the tests of the decorator send requests to."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db import IntegrityError, connection, transaction
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    JsonResponse,
    StreamingHttpResponse,
)
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator

from django_idempotency import idempotent
from tests.shopapp.models import Ledger, Line, Order
from tests.views import answers, creates, view_class


def order() -> int:
    return Order.objects.create().pk


create = idempotent(creates())


@idempotent
def answer(request: HttpRequest) -> HttpResponse:
    """Write, then answer with the status that the request names."""
    order()
    return HttpResponse(f"{Order.objects.count()} orders", status=int(request.GET["status"]))


@idempotent
def fail(request: HttpRequest) -> HttpResponse:
    order()
    raise ValueError("the view fails")


@idempotent
def fail_after_commit(request: HttpRequest) -> HttpResponse:
    order()
    transaction.on_commit(lambda: [][0])
    return HttpResponse("ok")


@idempotent
def fail_at_commit(request: HttpRequest) -> HttpResponse:
    order()
    Line.objects.create(order_id=2**40)
    return HttpResponse("ok", status=201)


@idempotent
def swallow(request: HttpRequest) -> HttpResponse:
    """Hide a database error and answer as if nothing had happened."""
    order()
    Ledger.objects.create(entry="once")
    try:
        if request.GET.get("raw"):
            connection.cursor().execute("SELECT 1/0")
        else:
            Ledger.objects.create(entry="once")
    except Exception:
        return HttpResponse("hidden", status=int(request.GET["status"]))
    raise AssertionError("there was no error to hide")


@idempotent
def dry_run(request: HttpRequest) -> HttpResponse:
    """Write, and ask Django to roll back: the writes, or those of an inner block."""
    inner = transaction.atomic(savepoint="savepoint" in request.GET) if "inner" in request.GET else nullcontext()
    with inner:
        order()
        transaction.set_rollback(True)
    return HttpResponse("dry", status=int(request.GET["status"]))


@idempotent
def gives_up(request: HttpRequest) -> HttpResponse:
    """Catch a failure in a block without a savepoint, after a rollback that an inner block has had."""
    with transaction.atomic():
        transaction.set_rollback(True)
    transaction.set_rollback(True)
    transaction.set_rollback(False)
    order()
    with suppress(ValueError), transaction.atomic(savepoint=False):
        raise ValueError
    return HttpResponse("hidden")


@idempotent
def handled(request: HttpRequest) -> HttpResponse:
    """Handle a database error as Django's documentation says."""
    Ledger.objects.create(entry="once")
    try:
        with transaction.atomic():
            Ledger.objects.create(entry="once")
    except IntegrityError:
        return HttpResponse("handled", status=200)
    raise AssertionError("there was no error to handle")


@idempotent
def template(request: HttpRequest) -> HttpResponse:
    body = engines["django"].from_string("{{ orders }} in {{ atomic }}")
    order()
    context = {"orders": Order.objects.count, "atomic": lambda: connection.in_atomic_block}
    return TemplateResponse(request, body, context)


@idempotent
def mirror(request: HttpRequest) -> HttpResponse:
    """Answer with the bytes and headers that the request asks for."""
    order()
    response = HttpResponse(request.body, content_type=request.headers.get("X-Type", "text/plain"))
    for name, value in json.loads(request.headers.get("X-Headers", "{}")).items():
        response[name] = value
    response.set_cookie("secret", "value")
    if reason := request.headers.get("X-Reason"):
        response.reason_phrase = reason
    return response


@idempotent
def empty(request: HttpRequest) -> HttpResponse:
    order()
    response = HttpResponse(status=204)
    del response["Content-Type"]
    return response


@idempotent
def stream(request: HttpRequest) -> Any:
    return StreamingHttpResponse(iter([b"a", b"b"]), status=201, headers={"Location": f"/orders/{order()}"})


@idempotent
def download(request: HttpRequest) -> Any:
    order()
    return FileResponse(iter([b"x"]))


@idempotent
def moved(request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect(f"/handlers?id={order()}")


@idempotent
def too_large(request: HttpRequest) -> HttpResponse:
    order()
    return HttpResponse(b"0123456789" * 500_000, headers={"Location": "/orders/1"})


@idempotent(store_body=False)
def secret(request: HttpRequest) -> HttpResponse:
    return HttpResponse("secret", status=201, headers={"Location": f"/orders/{order()}"})


@idempotent
def upload(request: HttpRequest) -> HttpResponse:
    order()
    return JsonResponse({name: [f.name, f.size] for name, f in request.FILES.items()} | dict(request.POST.items()))


@idempotent(required=False)
def optional(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"id": order(), "atomic": connection.in_atomic_block})


@login_required
@idempotent(may_replay=lambda request: request.headers.get("X-Denied") is None)
def mine(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"id": order(), "user": request.user.username})


@transaction.non_atomic_requests
@idempotent(required=False)
def opted_out(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"atomic": connection.in_atomic_block})


FUNCTIONS = (
    *(answer, fail, fail_after_commit, fail_at_commit, swallow, dry_run, gives_up, handled, template, mirror, empty),
    *(moved, stream, download, too_large, secret, upload, optional, mine, opted_out),
)
urlpatterns = [
    *(path(view.__name__, view) for view in FUNCTIONS),
    path("create", create),
    path("elsewhere", idempotent(using="other")(creates())),
    path("known_callers", idempotent(anonymous="refuse")(creates(200))),
    path("handlers", method_decorator(idempotent, name="put")(view_class(get=answers(), put=creates(200))).as_view()),
]
