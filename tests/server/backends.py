"""A server whose views publish to a broker, with their keys in the backend of KEYS. It has no table and no database.

The broker is a Redis of its own (BROKER): the list `effects:<key>` counts, and `go:<key>` lets a held view go on.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import django
import redis
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="only for tests",
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django_idempotency"],
    IDEMPOTENCY={"BACKENDS": {"events": json.loads(os.environ["KEYS"])}},
)
django.setup()

from django_idempotency import idempotent  # noqa: E402 (models are needed)
from tests.next_release import become_the_next  # noqa: E402

if os.environ.get("RELEASE") == "next":
    become_the_next()

broker = redis.Redis.from_url(os.environ["BROKER"])


@idempotent(backend="events", lease=float(os.environ["LEASE"]), scope=lambda request: "s", operation="publish")
def publish(request: HttpRequest) -> HttpResponse:
    key = request.headers["Idempotency-Key"]
    number = broker.rpush(f"effects:{key}", os.getpid())
    if "X-Kill" in request.headers and number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return HttpResponse(f"{key} was published as {number}", status=201)


def read(request: HttpRequest) -> HttpResponse:
    return HttpResponse("here")


urlpatterns: list[Any] = [path("publish", publish), path("read", read)]
application = get_wsgi_application()
