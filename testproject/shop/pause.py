"""A pause in the middle of a view, for the demo only."""

from __future__ import annotations

from django.conf import settings
from django.db import connection
from django.http import HttpRequest

HEADER = "X-Demo-Pause"


def pause(request: HttpRequest) -> None:
    """Wait while the demo holds the advisory lock that the header names."""
    if settings.DEMO and (number := request.headers.get(HEADER)):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [int(number)])
