"""Each view twice: as anybody would write it, and protected. Whatever the first accepts the second must accept."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from django.http import HttpResponse
from django.urls import path

from django_idempotency import idempotent
from django_idempotency.keys import InvalidKey, from_form_field
from tests.settings import REST_FRAMEWORK_INSTALLED
from tests.views import view_class

RUNS: list[str] = []


def seen(*values: Any) -> HttpResponse:
    """The answer of a view that has accepted its request: a digest of everything that it was given."""
    digest = sha256(repr(values).encode(errors="surrogatepass")).hexdigest()
    RUNS.append(digest)
    return HttpResponse(digest, headers={"X-Ran": "yes"})


def uploaded(request: Any) -> list[Any]:
    return [(name, file.name, file.read()) for name, files in request.FILES.lists() for file in files]


def nothing(request: Any) -> HttpResponse:
    return seen()


def body(request: Any) -> HttpResponse:
    return seen(request.body)


def stream(request: Any) -> HttpResponse:
    return seen(request.read(10), request.read())


def lines(request: Any) -> HttpResponse:
    return seen(list(request))


def form(request: Any) -> HttpResponse:
    return seen(sorted(request.POST.lists()), sorted(uploaded(request)))


def loads(request: Any) -> HttpResponse:
    return seen(json.loads(request.body))


VIEWS: dict[str, Callable[[Any], HttpResponse]] = {
    view.__name__: view for view in (nothing, body, stream, lines, form, loads)
}


def event_id(request: Any) -> str:
    """As docs/events.md shows it."""
    try:
        return str(json.loads(request.body)["id"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InvalidKey("The body has no id.") from None


READERS = {"json": event_id, "form": from_form_field("a")}
urlpatterns = [
    *(path(f"keyed/{name}", idempotent(key=reader)(nothing)) for name, reader in READERS.items()),
    *(path(f"bare/{name}", view) for name, view in VIEWS.items()),
    *(path(f"protected/{name}", idempotent(view)) for name, view in VIEWS.items()),
]

if REST_FRAMEWORK_INSTALLED:
    from rest_framework.views import APIView

    from django_idempotency.rest_framework import IdempotencyMixin

    def data(request: Any) -> HttpResponse:
        return seen(str(request.data))

    def rest_view(view: Callable[[Any], HttpResponse], *bases: Any) -> Any:
        return view_class(*bases, APIView, post=view, patch=view, authentication_classes=[]).as_view()

    REST_VIEWS = {**VIEWS, "data": data}
    urlpatterns += [
        *(path(f"bare/rest/{name}", rest_view(view)) for name, view in REST_VIEWS.items()),
        *(path(f"protected/rest/{name}", rest_view(view, IdempotencyMixin)) for name, view in REST_VIEWS.items()),
    ]
