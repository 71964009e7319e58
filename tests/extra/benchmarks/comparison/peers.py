"""How each package protects the shop's endpoint: as its own documentation says. Imported before Django is set up."""

import os
import subprocess
import sys
from dataclasses import dataclass, field

LOCK_SECONDS = 2
"""How long a lock outlives its worker, where a package has such a setting: short, so that the comparison ends soon."""


@dataclass(frozen=True)
class Peer:
    """A package: what to install, and where it goes."""

    requirement: str | None
    apps: tuple[str, ...] = ()
    middleware: tuple[str, ...] = ()
    settings: dict = field(default_factory=dict)

    def mixins(self):
        return ()

    def method(self, function):
        return function

    def view(self, function):
        return function

    def application(self, application):
        return application

    def prepare(self):
        """Make its own tables, where it has some that are not Django's."""


class DjangoIdempotency(Peer):
    def mixins(self):
        from django_idempotency.rest_framework import IdempotencyMixin

        return (IdempotencyMixin,)


class DrfIdempotencykey(Peer):
    def mixins(self):
        from drf_idempotencykey.mixins import DrfIdempotencyKeyMixin

        return (DrfIdempotencyKeyMixin,)


class DjangoIdempotencyKey(Peer):
    def view(self, function):
        from idempotency_key.decorators import idempotency_key

        return idempotency_key(function)


class RestFrameworkIdempotencyKey(Peer):
    def method(self, function):
        from rest_framework_idempotency_key.decorators import simple_idempotency_key_method

        return simple_idempotency_key_method(function)


class Idemkit(Peer):
    """In front of Django, as its example for Django does, with keys in the shop's own database."""

    def url(self):
        return f"postgresql://postgres@/{os.environ['DATABASE']}?host={os.environ['DATABASE_HOST']}"

    def application(self, application):
        from idemkit import HttpConfig, PostgresBackend, WSGIIdempotencyMiddleware

        config = HttpConfig(scope=lambda request: request.headers["authorization"], lease_ttl_seconds=LOCK_SECONDS)
        return WSGIIdempotencyMiddleware(application, backend=PostgresBackend.from_url(self.url()), config=config)

    def prepare(self):
        subprocess.run(
            [sys.executable, "-m", "idemkit.cli", "init-pg", self.url()], check=True, stdout=subprocess.DEVNULL
        )


PEERS = {
    "no package": Peer(requirement=None),
    "django-idempotency": DjangoIdempotency(requirement=None, apps=("django_idempotency",)),
    # Its decorator fails on a method of an APIView (".accepted_renderer not set on Response"): so the middleware.
    "drf-idempotency": Peer(
        requirement="drf-idempotency==1.0.0",
        apps=("drf_idempotency",),
        middleware=("drf_idempotency.middleware.IdempotencyMiddleware",),
        settings={"IDEMPOTENCY": {"LOCK_TTL_SECONDS": LOCK_SECONDS}},
    ),
    "drf-idempotencykey": DrfIdempotencykey(requirement="drf-idempotencykey==0.2.0", apps=("drf_idempotencykey",)),
    "django-idempotency-key": DjangoIdempotencyKey(
        requirement="django-idempotency-key==1.3.0",
        middleware=("idempotency_key.middleware.ExemptIdempotencyKeyMiddleware",),
        settings={
            "IDEMPOTENCY_KEY": {
                "CONFLICT_STATUS_CODE": None,
                "STORAGE": {"CLASS": "idempotency_key.storage.CacheKeyStorage"},
            }
        },
    ),
    "djangorestframework-idempotency-key": RestFrameworkIdempotencyKey(
        requirement="djangorestframework-idempotency-key==1.0.3",
        apps=("rest_framework_idempotency_key",),
        middleware=("rest_framework_idempotency_key.middleware.IdempotencyKeyMiddleware",),
        settings={"IDEMPOTENCY_KEY_LOCK_TIMEOUT": LOCK_SECONDS},
    ),
    "idemkit": Idemkit(requirement="idemkit[postgres]==1.0.2"),
    "drf-idem": Peer(
        requirement="drf-idem==0.1.1",
        apps=("drf_idem",),
        middleware=("drf_idem.middleware.IdempotencyMiddleware",),
        settings={"DRF_IDEM": {"HEADER": "HTTP_IDEMPOTENCY_KEY", "CACHE_BACKEND": "default"}},
    ),
}
