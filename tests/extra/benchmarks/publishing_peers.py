"""The same view under another package, with its keys in the Redis at KEYS, as its documentation says: PEER names it.

This module is a URLconf and a WSGI application, in an environment that has none of our packages.
"""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="for the benchmark only",
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    IDEMPOTENCY={
        "BACKEND": "drf_idempotency.backends.redis.RedisBackend",
        "BACKEND_OPTIONS": {"url": os.environ["KEYS"]},
    },
)
bare = application = get_wsgi_application()

from tests.extra.benchmarks import published

urlpatterns = [*published.urlpatterns]
if os.environ["PEER"] == "drf":
    from drf_idempotency.decorators import idempotent

    urlpatterns.append(path("drf", idempotent()(published.publish)))
else:
    # For Django, it has a middleware around the whole application.
    from idemkit import HttpConfig, RedisBackend, WSGIIdempotencyMiddleware

    urlpatterns.append(path("idemkit", published.publish))
    one_caller = HttpConfig(scope=lambda request: "anonymous")
    keyed = WSGIIdempotencyMiddleware(bare, backend=RedisBackend.from_url(os.environ["KEYS"]), config=one_caller)

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        return (keyed if environ["PATH_INFO"] == "/idemkit" else bare)(environ, start_response)
