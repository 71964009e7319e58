from __future__ import annotations

from importlib import import_module
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection

from tests.server.boundaries import counted


def pause_after(application: Any) -> Any:
    """A WSGI middleware that stops between COMMIT and the answer."""

    def wrapped(environ: Any, start_response: Any) -> Any:
        answer = application(environ, start_response)
        if environ.get("HTTP_X_PAUSE") == "after COMMIT":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_lock_shared(20261120)")
        return answer

    return wrapped


application = counted(pause_after(get_wsgi_application()))
# Before gunicorn forks: otherwise each worker that takes a killed one's place would import this anew.
import_module(settings.ROOT_URLCONF)
import_module("httpcore")  # httpx does so only at its first call
