"""A database for each tenant, by django-isolated-tenants itself, on a real server: the recipe of docs/databases.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db import connection, connections
from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client, override_settings
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

pytest.importorskip("django_isolated_tenants")

from django_isolated_tenants import Tenant, TenantDatabase
from django_isolated_tenants.conf import get_provider, get_settings
from django_isolated_tenants.connections import registered_database_aliases, remove_database

from django_idempotency import idempotent
from django_idempotency.models import IdempotencyKey
from tests.clusters.aliases import alias
from tests.clusters.postgresql import Server, migrated_server
from tests.shopapp.models import Order

TENANTS = {"acme.example": Tenant("7", "acme"), "globex.example": Tenant("8", "globex")}
pytestmark = pytest.mark.only_on("postgresql")


class Provider:
    """What a project tells the package about its tenants."""

    server: Server

    def resolve_request(self, request: HttpRequest) -> Tenant | None:
        return TENANTS.get(request.get_host())

    def get_database(self, alias: str) -> TenantDatabase:
        return TenantDatabase(alias, {**self.server.settings(), "NAME": alias})

    def iter_databases(self) -> list[TenantDatabase]:
        return [self.get_database(tenant.database_alias) for tenant in TENANTS.values()]

    def iter_tenants(self) -> list[Tenant]:
        return list(TENANTS.values())


@pytest.fixture(scope="module", autouse=True)
def _server(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    if connection.vendor != "postgresql":
        yield  # every test here is skipped
        return
    with django_db_blocker.unblock(), migrated_server() as server, ExitStack() as stack:
        server.start()
        stack.callback(server.stop)
        stack.enter_context(alias("original", server.settings()))
        Provider.server = server
        yield


@pytest.fixture
def shop(documented: Callable[[str], ModuleType], serve: Any, django_db_blocker: Any) -> Iterator[SimpleNamespace]:
    """The package's middleware and router, with the documented router behind it, before a protected view."""
    recipe = documented("tenant_databases")

    @csrf_exempt
    @idempotent(scope=recipe.tenant_and_user)
    def create_order(request: HttpRequest) -> HttpResponse:
        order = Order.objects.create(reference=request.tenant.identifier)  # type: ignore[attr-defined]
        return JsonResponse({"id": order.pk}, status=201)

    def anonymous(request: HttpRequest) -> HttpResponse:
        request.user = AnonymousUser()
        return create_order(request)

    serve(path("orders/", csrf_exempt(anonymous)))
    names = [tenant.database_alias for tenant in TENANTS.values()]
    changed = {
        "ISOLATED_TENANTS": {"PROVIDER": "tests.clusters.test_tenant_databases.Provider"},
        "DATABASE_ROUTERS": ["django_isolated_tenants.router.TenantRouter", "shop.tenant_databases.ByTenant"],
        "MIDDLEWARE": ["django_isolated_tenants.middleware.TenantMiddleware", *settings.MIDDLEWARE],
    }
    connections["original"].close()
    with django_db_blocker.unblock(), override_settings(**changed):
        for name in names:
            Provider.server.execute(f"CREATE DATABASE {name} TEMPLATE shop", "postgres")
        yield SimpleNamespace(recipe=recipe)
        for name in names:
            remove_database(name)
            Provider.server.execute(f"DROP DATABASE {name} WITH (FORCE)", "postgres")
    get_settings.cache_clear()
    get_provider.cache_clear()


def order(host: str, key: str) -> Any:
    return Client().post("/orders/", headers={"Idempotency-Key": key, "Host": host})


def told(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer["Idempotency-Replayed"]


def test_tenants_with_one_key_share_nothing(shop: Any, key: str) -> None:
    """Each has one order and one key, in its own database, under the id of the tenant."""
    for host, tenant in TENANTS.items():
        assert [told(order(host, key)) for _ in range(2)] == [(201, "false"), (201, "true")]
        name = tenant.database_alias
        assert Order.objects.using(name).get().reference == tenant.identifier
        assert IdempotencyKey.objects.using(name).get().scope == f"{tenant.identifier}:anonymous"


def test_one_call_cleans_each_tenant_up(shop: Any, key: str) -> None:
    """In a process that has served no request, too."""
    for host, tenant in TENANTS.items():
        order(host, key)
        keys = IdempotencyKey.objects.using(tenant.database_alias)
        keys.update(expires_at=F("created_at"))
        remove_database(tenant.database_alias)
    assert not registered_database_aliases()
    shop.recipe.clean_up()
    assert not any(IdempotencyKey.objects.using(tenant.database_alias).exists() for tenant in TENANTS.values())
