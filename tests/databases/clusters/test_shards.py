"""An alias for each shard and a router, on two PostgreSQL servers: the recipes of docs/databases.md."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client, override_settings
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency import get_operation, idempotent
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.databases.clusters.aliases import alias
from tests.databases.clusters.postgresql import Server, migrated_server
from tests.shopapp.models import Order

ACME, GLOBEX = "acme.example", "globex.example"
MOVE_TENANT = Path(__file__).parents[3] / "docs" / "move_tenant.py"
SHARDS = {"north": ACME, "south": GLOBEX}
pytestmark = pytest.mark.only_on("postgresql")


@pytest.fixture(scope="module", autouse=True)
def servers(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, Server]]:
    if connection.vendor != "postgresql":
        yield {}  # every test here is skipped
        return
    with django_db_blocker.unblock(), migrated_server() as original, ExitStack() as stack:
        running = {}
        for number, name in enumerate(SHARDS):
            running[name] = server = original.copy_to(original.folder.parent / name)
            server.start()
            stack.callback(server.stop)
            # Orders keep their ids when their tenant moves.
            server.execute(f"ALTER SEQUENCE shopapp_order_id_seq RESTART WITH {number * 1_000_000 + 1}")
            stack.enter_context(alias(name, server.settings()))
        yield running


@pytest.fixture(autouse=True)
def _empty(servers: dict[str, Server], django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield
        for name in servers:
            for model in (Order, IdempotencyStep, IdempotencyKey):
                model._default_manager.using(name).all().delete()


@pytest.fixture
def shop(documented: Callable[[str], ModuleType], serve: Any) -> Iterator[SimpleNamespace]:
    """The documented router and middleware, before an atomic view and a leased view."""
    shards = documented("shards")
    charges: list[str] = []

    @csrf_exempt
    @idempotent(scope=shards.tenant_and_caller)
    def create_order(request: HttpRequest) -> HttpResponse:
        order = Order.objects.create(reference=shards.tenant.get())
        return JsonResponse({"id": order.pk}, status=201)

    @csrf_exempt
    @idempotent(scope=shards.tenant_and_caller, lease=60)
    def charge_and_order(request: HttpRequest) -> HttpResponse:
        operation = get_operation(request)
        operation.call("charge", charges.append, operation.derive_key("charge"))
        if "X-Fail" in request.headers:
            raise OSError("after the charge")
        order = operation.write("order", Order.objects.create, reference=shards.tenant.get())
        return JsonResponse({"id": order.pk}, status=201)

    serve(path("orders/", create_order), path("pay/", charge_and_order))
    middleware = ["shop.shards.tenants", *settings.MIDDLEWARE]
    with override_settings(DATABASE_ROUTERS=["shop.shards.ByTenant"], MIDDLEWARE=middleware):
        yield SimpleNamespace(shards=shards, charges=charges)


def order(host: str, key: str = "one", url: str = "/orders/", **headers: str) -> Any:
    client = Client(raise_request_exception=False)
    return client.post(url, headers={"Idempotency-Key": key, "Host": host, **headers})


def told(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer["Idempotency-Replayed"]


def references(name: str) -> list[str]:
    return sorted(Order.objects.using(name).values_list("reference", flat=True))


def test_keys_are_on_the_shard_of_the_orders(shop: Any) -> None:
    """Two tenants send the same key. Each has an order and a key on its own server, and nothing is elsewhere."""
    for host in (ACME, GLOBEX):
        first, again = order(host), order(host.upper() + ":443")
        assert (told(first), told(again), first.content) == ((201, "false"), (201, "true"), again.content)
    assert (references("north"), references("south"), references("default")) == (["acme"], ["globex"], [])
    for name, scope in (("north", "acme:anonymous"), ("south", "globex:anonymous")):
        assert IdempotencyKey.objects.using(name).get().scope == scope
    assert not IdempotencyKey.objects.using("default").exists()


@pytest.mark.django_db(transaction=True, databases=["default", "other", *SHARDS])
def test_one_command_cleans_every_shard_up(shop: Any, servers: dict[str, Server]) -> None:
    """Also those that are there while one is not: it is reported, and the exit status tells."""
    for host in (ACME, GLOBEX):
        order(host)
    for name in SHARDS:
        keys = IdempotencyKey.objects.using(name)
        keys.update(expires_at=F("expires_at") - timedelta(days=2))
    out, err = io.StringIO(), io.StringIO()
    servers["north"].stop()
    try:
        with pytest.raises(CommandError, match=r"^1 of 4 databases failed\.$"):
            call_command("cleanup_idempotency_keys", all_databases=True, stdout=out, stderr=err)
    finally:
        servers["north"].start()
        connections["north"].close()
    assert err.getvalue().startswith("north: ")
    assert out.getvalue().splitlines() == [
        "default: Deleted 0 expired idempotency keys.",
        "other: Deleted 0 expired idempotency keys.",
        "south: Deleted 1 expired idempotency key.",
    ]
    call_command("cleanup_idempotency_keys", all_databases=True, stdout=out)
    assert not any(IdempotencyKey.objects.using(name).exists() for name in SHARDS)


class TestMoving:
    @pytest.fixture
    def moving(self, shop: Any) -> ModuleType:
        """With the tests' models."""
        module = ModuleType("move_tenant")
        exec(compile(MOVE_TENANT.read_text(), MOVE_TENANT, "exec"), vars(module))
        return module

    def test_a_tenant_takes_its_keys_along(self, shop: Any, moving: Any) -> None:
        """Replays stay replays, a half-done payment goes on behind its charge, other tenants stay."""
        before = order(ACME)
        assert order(ACME, "paid", "/pay/", **{"X-Fail": "yes"}).status_code == 500
        order(GLOBEX)
        shop.shards.MOVING.add("acme")
        assert order(ACME)["Retry-After"] == "60"
        moving.move("acme", source="north", target="south")
        shop.shards.SHARDS["acme"] = "south"
        shop.shards.MOVING.clear()

        replay = order(ACME)
        assert (told(replay), replay.content) == ((201, "true"), before.content)
        assert told(order(ACME, "paid", "/pay/")) == (201, "false")
        assert len(shop.charges) == 1
        assert references("south") == ["acme", "acme", "globex"]
        assert references("north") == []
        assert not IdempotencyKey.objects.using("north").exists()
        assert not IdempotencyStep.objects.using("north").exists()

    def test_a_tenant_that_is_at_work_does_not_move(self, shop: Any, moving: Any) -> None:
        """A worker that runs on would end on the old shard, where its row is gone."""
        order(ACME, "paid", "/pay/", **{"X-Fail": "yes"})
        keys = IdempotencyKey.objects.using("north")
        keys.update(status="in_progress", attention_at=None, locked_until=F("created_at") + timedelta(minutes=1))
        with pytest.raises(RuntimeError, match="still at work"):
            moving.move("acme", source="north", target="south")
        assert (keys.count(), IdempotencyKey.objects.using("south").count()) == (1, 0)

    def test_keys_whose_tenant_nobody_can_tell_stay(self, shop: Any, moving: Any) -> None:
        """The scope of a long name is stored as a hash. Left behind, its payment would be made again."""
        order(ACME)
        keys = IdempotencyKey.objects.using("north")
        keys.update(scope="scope:" + "0" * 64)
        with pytest.raises(RuntimeError, match="whose scope is a hash"):
            moving.move("acme", source="north", target="south")
        assert (keys.count(), references("south")) == (1, [])
