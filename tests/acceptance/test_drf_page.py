"""The page about the REST framework: its bulk requests, and its schema."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.test import Client
from django.urls import clear_url_caches, include, path

from django_idempotency.keys import caller_scope
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key, scope_of_user
from tests.shopapp.models import Order, Purchase

pytest.importorskip("rest_framework")


def item(key: str, amount: int = 1) -> dict[str, Any]:
    return {"key": key, "reference": "a book", "amount": amount}


@pytest.mark.django_db
@pytest.mark.parametrize("headers", [{}, {"Accept": "text/html, */*;q=0.8"}, {"HX-Request": "true"}])
def test_each_item_of_a_bulk_request_runs_once(
    run: Any, serve: Any, client: Client, django_user_model: Any, headers: dict[str, str]
) -> None:
    """A retry replays what has run, and runs the rest, also for a browser. Another customer may use the same keys."""
    serve(path("bulk/", run("docs/drf.md", "shop/bulk.py").BulkOrders.as_view()))
    ann = django_user_model.objects.create_user("ann")
    client.force_login(ann)

    def send(*items: dict[str, Any]) -> list[tuple[Any, ...]]:
        answer = client.post("/bulk/?format=json", list(items), content_type="application/json", headers=headers)
        assert answer.status_code == 207
        return [(done["key"], done["status"], done.get("replayed", done.get("code"))) for done in answer.json()]

    assert send(item("one"), item("no key")) == [("one", 201, False), ("no key", 400, None)]
    assert send(item("one"), item("two")) == [("one", 201, True), ("two", 201, False)]
    assert send(item("one", amount=9)) == [("one", 422, "PayloadMismatch")]
    create_key("running", scope=scope_of_user(ann), operation="bulk order", status="in_progress")
    assert send(item("running")) == [("running", 409, "OperationInProgress")]
    assert Order.objects.count() == 2
    client.force_login(django_user_model.objects.create_user("ben"))
    assert send(item("one")) == [("one", 201, False)]


@pytest.mark.django_db
def test_a_bulk_request_of_another_tenant_has_other_keys(
    run: Any, serve: Any, client: Client, django_user_model: Any, settings: Any
) -> None:
    """Also for one user with one key: the project's `SCOPE` counts."""
    settings.IDEMPOTENCY = {"SCOPE": lambda request: f"{request.headers['X-Tenant']}:{caller_scope(request)}"}
    serve(path("bulk/", run("docs/drf.md", "shop/bulk.py").BulkOrders.as_view()))
    client.force_login(django_user_model.objects.create_user("ann"))
    told = [
        client.post("/bulk/", [item("one")], content_type="application/json", headers={"X-Tenant": tenant}).json()
        for tenant in ("acme", "globex", "acme")
    ]
    assert [done["replayed"] for (done,) in told] == [False, False, True]
    assert Order.objects.count() == 2


def test_the_schema_shows_the_projects_own_errors(run: Any, settings: Any) -> None:
    """In the place of responses without a body."""
    generators = pytest.importorskip("drf_spectacular.generators")
    settings.IDEMPOTENCY = {"ERROR_RESPONSE": lambda request, problem: None}
    view = run("docs/drf.md", "shop/order_view.py").OrderView
    view.schema = run("docs/drf.md", "shop/api_schema.py").ShopSchema()
    made = generators.SchemaGenerator(patterns=[path("orders/", view.as_view())]).get_schema(request=None, public=True)
    responses = made["paths"]["/orders/"]["post"]["responses"]
    form = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    assert [status for status, response in responses.items() if response.get("content") == form] == [
        "409",
        "422",
        "503",
    ]
    assert list(made["components"]["schemas"]["Error"]["properties"]) == ["code", "detail", "reference"]


@pytest.mark.django_db
@pytest.mark.parametrize("down", [False, True])
def test_an_action_captures_once(
    run: Any, serve: Any, client: Client, gateway: Any, django_user_model: Any, down: bool
) -> None:
    """Also if the gateway hangs up after the charge. Another order's capture is its own."""
    from rest_framework.routers import DefaultRouter

    sys.modules["shop"].gateway = gateway  # type: ignore[attr-defined]
    router = DefaultRouter()
    router.register("orders", run("docs/drf.md", "shop/capture.py").OrderViewSet, basename="order")
    clear_url_caches()
    serve(path("", include(router.urls)))
    client.raise_request_exception = False
    client.force_login(django_user_model.objects.create_user("ann"))
    orders = [Order.objects.create(reference="ann", amount=5) for _ in range(2)]

    def capture(order: Order) -> tuple[int, Any]:
        answer = client.post(f"/orders/{order.pk}/capture/", headers={"Idempotency-Key": f"order-{order.pk}"})
        return answer.status_code, answer.headers.get("Idempotency-Replayed")

    gateway.down = down
    if down:
        assert capture(orders[0])[0] == 500
        gateway.down = False
    assert [capture(order) for order in (*orders, *orders)] == [(201, "false")] * 2 + [(201, "true")] * 2
    assert len(gateway.books) == 2
    assert sorted(Purchase.objects.values_list("number", "amount")) == [("ch_1", 5), ("ch_2", 5)]
    assert set(IdempotencyKey.objects.values_list("operation", flat=True)) == {"capture an order"}
