"""One package and the bare view, side by side in a process: PEER says which. Run by `peers`, without our own imports.

The same view of the REST framework, called as a WSGI application with the package's middleware. For each number N on
standard input it sends N requests of each case, and prints the microseconds of one as JSON; first it prints versions.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from io import BytesIO
from typing import Any
from uuid import uuid4

import django
from django.conf import settings
from peers import PEERS

peer = PEERS[os.environ["PEER"]]
settings.configure(
    SECRET_KEY="for the benchmark only",
    ALLOWED_HOSTS=["*"],
    USE_TZ=True,
    ROOT_URLCONF="__main__",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework", *peer.apps],
    DATABASES={"default": {**json.loads(os.environ["PEER_DATABASE"]), "CONN_MAX_AGE": None, "ATOMIC_REQUESTS": True}},
    # Django's default of 300 entries would forget keys during the run, and let their retries run again.
    CACHES={
        "default": {
            "BACKEND": "django.core.cache.backends.db.DatabaseCache",
            "LOCATION": "cache",
            "OPTIONS": {"MAX_ENTRIES": 1_000_000},
        }
    },
    **peer.settings,
)
django.setup()

import rest_framework
from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import call_command
from django.db import connection, models
from django.test import RequestFactory, override_settings
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response
from rest_framework.views import APIView

FACTORY = RequestFactory()
BODY = b'{"note": "tea"}'


class Order(models.Model):
    note = models.TextField()

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return self.note


class Trusting(BaseAuthentication):
    """Everybody is the one user: who is calling is no part of what is measured."""

    def authenticate(self, request: Any) -> Any:
        return request._request.user, None


def logged_in(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The first middleware."""
    user = User.objects.get()

    def handle(request: Any) -> Any:
        request.user = user
        return get_response(request)

    return handle


def post(self: Any, request: Any) -> Response:
    order = Order.objects.create(note=request.data["note"])
    return Response({"order": order.pk}, status=201)


def orders(*mixins: type, method: Callable[..., Any]) -> Any:
    return type("Orders", (*mixins, APIView), {"authentication_classes": [Trusting], "post": method}).as_view()


urlpatterns = [
    path("bare", orders(method=post)),
    path("orders", peer.view(orders(*peer.mixins(), method=peer.method(post)))),
]


def application(middleware: tuple[str, ...]) -> Callable[..., Any]:
    with override_settings(MIDDLEWARE=("__main__.logged_in", *middleware)):
        return WSGIHandler()


def prepare() -> None:
    call_command("migrate", verbosity=0)
    call_command("createcachetable", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    User.objects.create_user("ann")
    peer.prepare()


def main() -> None:
    prepare()

    def sender(handle: Callable[..., Any], url: str, done: str | None = None) -> Callable[[], None]:
        def send() -> None:
            headers = {"Idempotency-Key": done or str(uuid4()), "Authorization": "Bearer ann"}
            request = FACTORY.post(url, BODY, content_type="application/json", headers=headers)
            statuses: list[str] = []
            environ = {**request.environ, "wsgi.input": BytesIO(BODY)}  # Django's own refuses to be read to its end
            response = handle(environ, lambda status, headers, error=None: statuses.append(status))
            body = b"".join(response)
            if close := getattr(response, "close", None):
                close()
            assert statuses[0].startswith("201"), (statuses, body)

        return send

    protected = peer.application(application(peer.middleware))
    sends = {
        "bare view": sender(application(()), "/bare"),
        "first request": sender(protected, "/orders"),
        "replay": sender(protected, "/orders", str(uuid4())),
    }
    sends["replay"]()
    expected = Order.objects.count()
    print(json.dumps([django.__version__, rest_framework.__version__]), flush=True)
    for line in sys.stdin:
        each = int(line)
        found = {}
        for name, send in sends.items():
            started = time.perf_counter()
            for _ in range(each):
                send()
            found[name] = (time.perf_counter() - started) / each * 1e6
        expected += 2 * each
        assert Order.objects.count() == expected, (os.environ["PEER"], Order.objects.count() - expected)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
