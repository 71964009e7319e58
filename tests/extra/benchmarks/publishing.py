"""Views that publish to a list of the Redis at BROKER, each with its keys in another place: of keys_outside.py.

This module is the URLconf of a server as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import path

from django_idempotency import idempotent
from tests.extra.benchmarks import published
from tests.extra.benchmarks.published import publish

BACKENDS = {"default": "Redis", "always": "Redis, `appendfsync always`", "replicas": "Redis, `replicas=1`"}
MEMORY = {"memory": "memory (our own part)"}


def elsewhere(name: str) -> Callable[..., Any]:
    return idempotent(backend=name, lease=30, operation=name)(publish)


VIEWS: dict[str, tuple[str, Callable[..., Any]]] = {
    "bare": ("bare view", publish),
    "atomic": ("`@idempotent`, PostgreSQL", idempotent(operation="atomic")(publish)),
    "leased": ("with `lease`, PostgreSQL", idempotent(lease=30, on_abandoned="retry", operation="leased")(publish)),
    **{name: (title, elsewhere(name)) for name, title in {**BACKENDS, **MEMORY}.items()},
}
urlpatterns = [*published.urlpatterns, *(path(name, view) for name, (_, view) in VIEWS.items() if name != "bare")]
