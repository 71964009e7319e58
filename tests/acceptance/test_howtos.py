"""The how-to guides, block by block."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser
from django.db import connections
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import clear_url_caches, include, path

from django_idempotency import idempotent
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.shopapp.models import Order


@pytest.fixture
def ann(client: Client, django_user_model: Any) -> Any:
    user = django_user_model.objects.create_user("ann")
    client.force_login(user)
    return user


@pytest.mark.django_db
def test_the_views_of_the_rest_framework(run: Any, serve: Any, client: Client, ann: Any) -> None:
    """The viewset, the function, and nothing but the mixin. An order that was given away shows nothing more."""
    routers = pytest.importorskip("rest_framework.routers")
    module = run("docs/drf.md", "shop/orders.py")
    router = routers.DefaultRouter()
    router.register("orders", module.OrderViewSet, basename="order")
    first = run("docs/drf.md", "shop/order_view.py").OrderView
    clear_url_caches()
    twice = serve(path("reorder/", module.reorder), path("first/", first.as_view()), path("", include(router.urls)))
    for url in ("/orders/", "/reorder/", "/first/"):
        twice(client, url, {"reference": "a book", "amount": 1})
        Order.objects.all().delete()
        IdempotencyKey.objects.all().delete()
    assert client.post("/orders/", {"amount": 1}).status_code == 400
    assert client.post("/orders/", {"amount": 1}, headers={"X-Client": "legacy"}).status_code == 201
    order = Order.objects.create(reference="ann", amount=2)
    double, keyed = f"/orders/{order.pk}/double/", {"headers": {"Idempotency-Key": "one"}}
    assert [client.post(double, **keyed).json() for _ in range(2)] == [{"amount": 4}] * 2
    assert client.post(double).status_code == 200
    Order.objects.update(reference="ben")
    assert client.post(double, **keyed).status_code == 403


@pytest.mark.django_db
def test_unstable_fields_make_no_other_request(run: Any, serve: Any, client: Client) -> None:
    """A new trace id, time stamp and query string are a replay; another amount is not."""
    clear_url_caches()
    serve(path("orders/", run("docs/options.md", "shop/traced.py").create_order))
    answers = [
        client.post(
            f"/orders/?try={n}",
            {"amount": amount, "trace_id": n, "meta": {"sent_at": n}},
            content_type="application/json",
            headers={"Idempotency-Key": "one"},
        )
        for n, amount in ((1, 5), (2, 5), (3, 6))
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 422]


@pytest.mark.django_db
def test_a_repeated_delete_gets_the_first_answer(run: Any, serve: Any, client: Client) -> None:
    """With `methods=("DELETE",)`; with another key it is a 404."""
    clear_url_caches()
    serve(path("orders/<int:pk>/", run("docs/endpoints.md", "shop/refunds.py").cancel_order))
    url = f"/orders/{Order.objects.create(amount=3).pk}/"
    answers = [client.delete(url, headers={"Idempotency-Key": key}) for key in ("one", "one", "two")]
    assert [answer.status_code for answer in answers] == [200, 200, 404]
    assert [answer.json() for answer in answers[:2]] == [{"refunded": 3}] * 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("view", ["create_order", "pay"])
def test_the_asynchronous_views_run_once(run: Any, serve: Any, gateway: Any, view: str) -> None:
    """Atomic and leased."""
    sys.modules["shop"].gateway = gateway  # type: ignore[attr-defined]
    serve(path("orders/", getattr(run("docs/views.md", "shop/async_views.py"), view)))

    async def twice() -> list[Any]:
        send = AsyncClient().post
        return [await send("/orders/", {"reference": "a book"}, headers={"Idempotency-Key": "one"}) for _ in range(2)]

    first, again = async_to_sync(twice)()
    assert [first["Idempotency-Replayed"], again["Idempotency-Replayed"]] == ["false", "true"]
    assert first.content == again.content
    assert Order.objects.count() == 1
    assert len(gateway.books) == (view == "pay")


@pytest.mark.django_db(databases=["default", "other"])
def test_keys_are_where_the_orders_are(run: Any, serve: Any, client: Client) -> None:
    """On the other alias, both."""
    serve(path("orders/", run("docs/databases.md", "shop/archive.py").create_order))
    first, again = (client.post("/orders/", headers={"Idempotency-Key": "one"}).json() for _ in range(2))
    assert first == again
    assert [Order.objects.using(alias).count() for alias in connections] == [0, 1]
    assert [IdempotencyKey.objects.using(alias).count() for alias in connections] == [0, 1]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("page", "header"), [("django_idempotency_key", "X-Request-Key"), ("drf_idempotency", "Idempotency-Key")]
)
def test_a_migrated_project_keeps_its_header(run: Any, serve: Any, client: Client, page: str, header: str) -> None:
    """The settings of the page are accepted, and clients go on as before."""
    serve(path("orders/", idempotent(lambda request: HttpResponse(Order.objects.create().pk, status=201))))
    with override_settings(IDEMPOTENCY=run("docs/rollout.md", f"after/{page}.py").IDEMPOTENCY):
        answers = [client.post("/orders/", {"reference": name}, headers={header: "one"}) for name in ("a", "a", "b")]
    assert [answer.status_code for answer in answers] == [201, 201, 422]
    assert (answers[0].content, Order.objects.count()) == (answers[1].content, 1)


@pytest.mark.django_db
def test_tenants_share_no_keys(run: Any, ann: Any, rf: Any) -> None:
    """A caller who is not logged in has a scope of its own."""
    scope = run("docs/databases.md", "shop/scopes.py").tenant_and_user
    request = rf.post("/")
    scopes = []
    for request.tenant in (SimpleNamespace(pk=7), SimpleNamespace(pk=8)):
        for request.user in (ann, AnonymousUser()):
            scopes.append(scope(request))
    assert scopes == [f"{tenant}:{who}" for tenant in (7, 8) for who in (ann.pk, "anonymous")]


@pytest.mark.django_db
def test_the_runbook_finds_what_needs_attention(run: Any) -> None:
    """Stuck, in doubt and half done, and none of the others."""
    for status in ("completed", "in_progress", "failed"):
        create_key(status, status=status)
    rows = [create_key("stuck", status="abandoned"), create_key("charged", steps={"charge": 7})]
    rows.append(create_key("doubt", in_doubt=["refund"], scope="7"))
    assert run("docs/runbook.md", "shop/attention.py").report() == {
        rows[0].pk: ["POST orders/ stuck of anonymous"],
        rows[1].pk: ["POST orders/ charged of anonymous", 'call charge: done {"value": 7}'],
        rows[2].pk: ["POST orders/ doubt of 7", "call refund: IN DOUBT"],
    }
