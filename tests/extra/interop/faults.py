"""A middleware that harms requests with a key, and writes down what arrived and what was answered.

The header X-Fault names the harm. Repeats of the request have the same header.

* lost: the worker of the first request kills itself after the COMMIT, so that there is no answer.
* 503: the first request gets this answer after the COMMIT.
* running: the view does not end before another request with the key has got an answer. The view asks for that itself.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from django.http import HttpRequest, HttpResponse

from tests.servers import eventually
from tests.shopapp.models import Ledger


def faults(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    def middleware(request: HttpRequest) -> Any:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return get_response(request)
        arrival = Ledger.objects.create(entry=f"{key} arrived {uuid4()}")
        is_first = not Ledger.objects.filter(entry__startswith=f"{key} arrived", pk__lt=arrival.pk).exists()
        fault = request.headers.get("X-Fault") if is_first else None
        response = get_response(request)
        answered = f"{key} answered {response.status_code} {digest(response.content)}"
        Ledger.objects.create(entry=f"{answered} {uuid4().hex[:16]}")
        if fault == "lost":
            os.kill(os.getpid(), signal.SIGKILL)
        return HttpResponse(status=503) if fault == "503" else response

    return middleware


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def until_a_repeat_is_answered(request: HttpRequest) -> None:
    """Part of a protected view, before its COMMIT."""
    if request.headers.get("X-Fault") == "running":
        key = request.headers["Idempotency-Key"]
        eventually("the repeat's answer", Ledger.objects.filter(entry__startswith=f"{key} answered").exists)


def arrivals(key: str) -> int:
    return Ledger.objects.filter(entry__startswith=f"{key} arrived").count()


def answers(key: str) -> list[tuple[int, str]]:
    """Status and digest of what the server has answered to requests with this key, in that order."""
    entries = Ledger.objects.filter(entry__startswith=f"{key} answered").order_by("pk").values_list("entry", flat=True)
    return [(int(status), digest) for _, _, status, digest, _ in (entry.split() for entry in entries)]
