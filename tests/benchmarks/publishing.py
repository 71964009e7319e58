"""Views that publish to a list of the Redis at BROKER, each with its keys in another place: of keys_outside.py.

This module is the URLconf of a server as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import redis
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_idempotency import idempotent

broker = redis.Redis.from_url(os.environ["BROKER"])
BACKENDS = {"default": "Redis", "always": "Redis, `appendfsync always`", "replicas": "Redis, `replicas=1`"}
MEMORY = {"memory": "memory (our own part)"}


def publish(request: HttpRequest) -> HttpResponse:
    broker.rpush("events", request.body)
    return HttpResponse(b'{"published": true}', status=201, content_type="application/json")


def elsewhere(name: str) -> Callable[..., Any]:
    return idempotent(backend=name, lease=30, operation=name)(publish)


VIEWS: dict[str, tuple[str, Callable[..., Any]]] = {
    "bare": ("bare view", publish),
    "atomic": ("`@idempotent`, PostgreSQL", idempotent(operation="atomic")(publish)),
    "leased": ("with `lease`, PostgreSQL", idempotent(lease=30, on_abandoned="retry", operation="leased")(publish)),
    **{name: (title, elsewhere(name)) for name, title in {**BACKENDS, **MEMORY}.items()},
}
urlpatterns = [path("read", lambda request: HttpResponse()), *(path(name, view) for name, (_, view) in VIEWS.items())]
