"""A database for each tenant, by django-isolated-tenants itself: the recipe of docs/databases.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connections, router
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

pytest.importorskip("django_isolated_tenants")

from django_isolated_tenants import Tenant, TenantDatabase
from django_isolated_tenants.conf import get_provider, get_settings
from django_isolated_tenants.connections import remove_database

from django_idempotency import idempotent
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.shopapp.models import Order

TENANT = Tenant("7", "acme")


class Provider:
    """What a project tells the package about its tenants. The tenant's database is that of the alias `other`."""

    def resolve_request(self, request: HttpRequest) -> Tenant | None:
        return TENANT if request.get_host() == "acme.example" else None

    def get_database(self, alias: str) -> TenantDatabase:
        return TenantDatabase(
            alias, {**connections.settings["other"], "NAME": connections["other"].settings_dict["NAME"]}
        )

    def iter_databases(self) -> list[TenantDatabase]:
        return [self.get_database(TENANT.database_alias)]

    def iter_tenants(self) -> list[Tenant]:
        return [TENANT]


@pytest.fixture
def recipe(documented: Callable[[str], ModuleType], serve: Any) -> Iterator[Any]:
    """The package's middleware and router, with the documented router behind it, before a protected view."""
    recipe: Any = documented("tenant_databases")
    serve(path("orders/", csrf_exempt(idempotent(scope=lambda request: "7:ann")(create_order))))
    changed = {
        "ISOLATED_TENANTS": {"PROVIDER": f"{__name__}.Provider"},
        "DATABASE_ROUTERS": ["django_isolated_tenants.router.TenantRouter", "shop.tenant_databases.ByTenant"],
        "MIDDLEWARE": ["django_isolated_tenants.middleware.TenantMiddleware"],
    }
    with override_settings(**changed):
        yield recipe
        remove_database(TENANT.database_alias)
    get_settings.cache_clear()
    get_provider.cache_clear()


def create_order(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(Order.objects.create().pk))


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_orders_and_keys_are_in_the_database_of_the_tenant(recipe: Any, django_db_blocker: Any) -> None:
    """The cleanup finds them there, in a process that has served no request, too."""
    with django_db_blocker.unblock():
        headers = {"Idempotency-Key": "one", "Host": "acme.example"}
        answers = [Client().post("/orders/", headers=headers) for _ in range(2)]
        assert [answer["Idempotency-Replayed"] for answer in answers] == ["false", "true"]
        assert [model.objects.using("other").count() for model in (Order, IdempotencyKey)] == [1, 1]
        assert not IdempotencyKey.objects.using("default").exists()
        assert router.db_for_write(Order) == "default"
        IdempotencyKey.objects.using("other").update(expires_at=F("created_at"))
        remove_database(TENANT.database_alias)
        recipe.clean_up()
        assert not IdempotencyKey.objects.using("other").exists()


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_what_is_left_of_a_tenants_charge_is_seen(recipe: Any, django_db_blocker: Any) -> None:
    """By a process that has served no request."""
    with django_db_blocker.unblock():
        create_key("one", steps={"charge": "ch_1"}, using="other")
        remove_database(TENANT.database_alias)
        for command in (recipe.recover, recipe.clean_up):
            with pytest.raises(CommandError, match="need attention"):
                command()
