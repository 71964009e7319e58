"""A view whose keys are in a backend that keeps them in memory and fails by plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from django_idempotency import idempotent
from django_idempotency.engine.conf import backend_for
from django_idempotency.engine.protocol.digests import identify
from django_idempotency.engine.stores.values import name_of
from tests.backends import FAULTY, FaultyBackend

NAME = name_of(identify(scope="s", operation="publish", key="k"))
RUNS: list[Any] = []
OPTIONS = {"backend": "events", "lease": 30, "operation": "publish", "scope": lambda request: "s"}


@pytest.fixture(name="backend", autouse=True)
def faulty_backend(settings: Any, monkeypatch: pytest.MonkeyPatch) -> FaultyBackend:
    settings.IDEMPOTENCY = {"BACKENDS": {"events": FAULTY}}
    monkeypatch.setattr(FaultyBackend, "swaps", 0)
    for name in ("plan", "after"):
        monkeypatch.setattr(FaultyBackend, name, {})
    RUNS.clear()
    made = backend_for("events")
    assert isinstance(made, FaultyBackend)
    return made


def publish(request: Any) -> HttpResponse:
    RUNS.append(request)
    return HttpResponse(f"event {len(RUNS)}", status=201)


def posting(view: Callable[..., Any] = publish, **options: Any) -> Callable[..., Any]:
    protected = idempotent(**{**OPTIONS, **options})(view)

    def send(data: Any = b"{}", key: str = "k") -> Any:
        return protected(
            RequestFactory().post("/", data, content_type="application/json", headers={"Idempotency-Key": key})
        )

    return send


def events(told: list[dict[str, Any]]) -> list[str]:
    return [one["event"] for one in told]
