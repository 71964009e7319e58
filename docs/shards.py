# django-idempotency/shards.py, revision 2
"""A router by tenant for orders and keys, and its middleware: see databases.md.

tests/databases/clusters/test_shards.py runs this file.
"""

from contextvars import ContextVar

from django.http import HttpResponse, HttpResponseNotFound
from shop.models import Order

from django_idempotency.keys import caller_scope
from django_idempotency.models import IdempotencyKey, IdempotencyStep

TENANTS = {"acme.example": "acme", "globex.example": "globex"}
SHARDS = {"acme": "north", "globex": "south"}
MOVING = set()
tenant = ContextVar("tenant", default=None)


class ByTenant:
    """A tenant's orders and their keys are on one shard. Without a tenant, the alias is `default`."""

    def db_for_write(self, model, **hints):
        return SHARDS.get(tenant.get()) if model in {Order, IdempotencyKey, IdempotencyStep} else None

    db_for_read = db_for_write


def tenants(get_response):
    """Middleware: the first one, so that everything behind it is routed alike."""

    def middleware(request):
        name = TENANTS.get(request.get_host().partition(":")[0].lower())
        if name is None:
            return HttpResponseNotFound()
        if name in MOVING:
            return HttpResponse(status=503, headers={"Retry-After": "60"})
        token = tenant.set(name)
        try:
            return get_response(request)
        finally:
            tenant.reset(token)

    return middleware


def tenant_and_caller(request):
    """The scope of each protected view: `@idempotent(scope=tenant_and_caller)`."""
    return f"{tenant.get()}:{caller_scope(request)}"
