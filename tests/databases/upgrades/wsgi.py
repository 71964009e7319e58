from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application

import django_idempotency


def telling(served: Any) -> Any:
    """A WSGI middleware that answers which release this is."""

    def wrapped(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] != "/read":
            return served(environ, start_response)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [str(Path(django_idempotency.__file__).parents[1]).encode()]

    return wrapped


application = telling(get_wsgi_application())
# Before gunicorn forks: otherwise each worker that takes a killed one's place would import this anew.
import_module(settings.ROOT_URLCONF)
import_module("httpcore")  # httpx does so only at its first call
