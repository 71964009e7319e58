"""Every way to write a view, as `idempotency_endpoints` meets them."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import condition, require_GET, require_http_methods, require_POST
from django.views.generic import TemplateView

from django_idempotency import idempotent
from tests.views import answers, view_class

bare = answers()


async def asynchronous(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def hides(view: Any) -> Any:
    """A decorator without functools.wraps."""

    def hidden(request: HttpRequest) -> HttpResponse:
        return view(request)

    return hidden


def shows(view: Any) -> Any:
    @wraps(view)
    def shown(request: HttpRequest) -> HttpResponse:
        return view(request)

    return shown


Handlers = view_class(**dict.fromkeys(("post", "put", "patch", "delete"), bare))
Plain = view_class(get=bare, post=bare)
ByAsyncHandler = method_decorator(idempotent, name="post")(view_class(post=asynchronous, put=asynchronous))


class ByHandler(Plain):
    post = idempotent(ttl=60)(Handlers.post)
    put = method_decorator(idempotent)(Handlers.put)
    patch = method_decorator([csrf_exempt, idempotent(required=False)])(Handlers.patch)
    delete = Handlers.delete


@method_decorator(idempotent, name="dispatch")
class ByDispatch(Plain):
    delete = Handlers.delete


class Inherits(LoginRequiredMixin, ByDispatch):
    """The mixin's own dispatch stands above the protected one, and calls it."""


class Callable:
    @idempotent
    def __call__(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


functions = [
    path("bare", bare),
    path("decorated", idempotent(bare)),
    path("wrapped", csrf_exempt(login_required(require_POST(idempotent(bare))))),
    path("shown", require_POST(shows(idempotent(bare)))),
    path("hidden", require_POST(hides(idempotent(bare)))),
    path("read", require_GET(bare)),
    path("three", require_http_methods(["GET", "POST", "DELETE"])(idempotent(bare))),
    path("both", require_http_methods(["POST", "PUT"])(require_POST(bare))),
    path("less", require_POST(require_http_methods(["POST", "PUT"])(bare))),
    path("condition", condition(lambda request: "x")(require_POST(bare))),
    path("partial", partial(require_POST(idempotent(bare)), extra=1)),
    path("async", require_POST(idempotent(asynchronous))),
    path("object", Callable()),
    path("above", csrf_exempt(Callable())),
]
classes = [
    path("plain", Plain.as_view()),
    path("template", TemplateView.as_view(template_name="x")),
    path("handler", ByHandler.as_view()),
    path("limited", ByHandler.as_view(http_method_names=["put"])),
    path("async", ByAsyncHandler.as_view()),
    path("dispatch", ByDispatch.as_view()),
    path("inherits", Inherits.as_view()),
    path("whole", csrf_exempt(idempotent(Plain.as_view()))),
    path("later", partial(ByDispatch.as_view(), x=1)),
]
urlpatterns = [
    path("f/", include(functions)),
    path("c/", include((classes, "app"), namespace="n")),
]
