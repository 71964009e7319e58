"""A middleware that harms the request which has the header X-Fault.

* `kill at shop.order`: the worker kills itself when it has saved an instance of this model, before the COMMIT.
* `pause at shop.order`: the worker waits there as long as the test holds an advisory lock.
* `kill at the charge`: a project says by `at` where it has other places.
* `kill after COMMIT`: the worker kills itself when the view has answered, so that the answer is lost.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from threading import local
from typing import Any

from django.db import connection
from django.db.models.signals import post_save

PAUSE = 20261123
_request = local()


def faults(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def middleware(request: Any) -> Any:
        _request.fault = fault = request.headers.get("X-Fault")
        response = get_response(request)
        if fault == "kill after COMMIT":
            os.kill(os.getpid(), signal.SIGKILL)
        return response

    post_save.connect(_saved, dispatch_uid=__name__)
    return middleware


def _saved(sender: Any, **_: Any) -> None:
    at(sender._meta.label_lower)


def at(place: str) -> None:
    """What happens here to the request of this thread."""
    fault = getattr(_request, "fault", None)
    if fault == f"kill at {place}":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == f"pause at {place}":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock_shared(%s), pg_advisory_unlock_shared(%s)", [PAUSE, PAUSE])
