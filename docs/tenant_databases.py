# django-idempotency/tenant_databases.py, revision 2
"""A router for keys and orders, behind that of django-isolated-tenants: see databases.md.

tests/databases/clusters/test_tenant_databases.py runs this file.
"""

from django.core.management import call_command
from django_isolated_tenants import get_current_database_alias
from django_isolated_tenants.conf import get_provider
from django_isolated_tenants.connections import register_database
from shop.models import Order

from django_idempotency.keys import caller_scope
from django_idempotency.models import IdempotencyKey, IdempotencyStep


class ByTenant:
    """Keys and orders are in the database of the tenant. Without a tenant, the alias is `default`."""

    def db_for_write(self, model, **hints):
        return get_current_database_alias() if model in {Order, IdempotencyKey, IdempotencyStep} else None

    db_for_read = db_for_write


def tenant_and_caller(request):
    return f"{request.tenant.identifier}:{caller_scope(request)}"


def aliases():
    """For commands: a process knows the alias of a tenant only after its first request."""
    return [register_database(database) for database in get_provider().iter_databases()]


def clean_up():
    call_command("cleanup_idempotency_keys", database=aliases(), fail_on_stuck=True)


def recover():
    call_command("recover_idempotency_keys", database=aliases())
