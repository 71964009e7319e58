"""The how-to guides, block by block."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import clear_url_caches, include, path
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from django_idempotency import idempotent
from django_idempotency.engine.conf import get_settings
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.shopapp.models import Order


@pytest.fixture
def ann(client: Client, django_user_model: Any) -> Any:
    user = django_user_model.objects.create_user("ann")
    client.force_login(user)
    return user


class TestRestFramework:
    @pytest.fixture(autouse=True)
    def orders(self, run: Any, serve: Any) -> Any:
        routers = pytest.importorskip("rest_framework.routers")
        module = run("docs/drf.md", "shop/orders.py")
        router = routers.DefaultRouter()
        router.register("orders", module.OrderViewSet, basename="order")
        first = run("docs/drf.md", "shop/order_view.py").OrderView
        clear_url_caches()
        return serve(path("reorder/", module.reorder), path("first/", first.as_view()), path("", include(router.urls)))

    @pytest.mark.django_db
    @pytest.mark.parametrize("url", ["/orders/", "/reorder/", "/first/"])
    def test_an_order_is_created_once(self, orders: Any, client: Client, ann: Any, url: str) -> None:
        """The viewset, the function, and nothing but the mixin."""
        orders(client, url, {"reference": "a book", "amount": 1})

    @pytest.mark.django_db
    def test_an_order_that_was_given_away_shows_nothing_more(self, client: Client, ann: Any) -> None:
        """Not in a replay either."""
        order = Order.objects.create(reference="ann", amount=2)

        def double() -> Any:
            return client.post(f"/orders/{order.pk}/double/", headers={"Idempotency-Key": "one"})

        assert [double().json(), double().json()] == [{"amount": 4}] * 2
        Order.objects.update(reference="ben")
        assert double().status_code == 403

    @pytest.mark.django_db
    def test_options_differ_by_action_and_client(self, client: Client, ann: Any) -> None:
        """Optional for one action and for one client, not protected for another action."""
        order = Order.objects.create(reference="ann", amount=2)
        url = f"/orders/{order.pk}/"
        assert client.post("/orders/", {"amount": 1}).status_code == 400
        assert client.post("/orders/", {"amount": 1}, headers={"X-Client": "legacy"}).status_code == 201
        assert client.post(f"{url}double/").status_code == 200
        changed = client.patch(url, {"amount": 3}, content_type="application/json")
        assert (changed.status_code, "Idempotency-Replayed" in changed) == (200, False)


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
def test_the_options_of_the_first_example(run: Any, serve: Any, client: Client) -> None:
    """A caller who cannot be told apart is refused. What is secret or large is not stored, and never runs again."""
    clear_url_caches()
    cards = run("docs/options.md", "shop/cards.py")
    serve(path("cards/", cards.create_card), path("export/", cards.export))

    def send(url: str, rows: int, **headers: str) -> Any:
        answer = client.post(url, {"rows": rows}, headers={"Idempotency-Key": "one", **headers})
        return answer.status_code, answer.json().get("code")

    assert send("/cards/", 1) == (403, "unidentified-caller")
    caller = {"X-Api-Key": "shop"}
    assert [send("/cards/", rows, **caller) for rows in (1, 1, 2)] == [
        (201, None),
        (409, "response-not-stored"),
        (409, "already-used"),
    ]
    assert [send("/export/", 20_000) for _ in range(2)] == [(200, None), (409, "response-not-stored")]
    assert [send("/export/", 2, **caller) for _ in range(2)] == [(200, None)] * 2


@pytest.mark.django_db
def test_the_settings_of_the_example(run: Any, serve: Any, client: Client) -> None:
    """Quoted UUIDs only, a header of the project tells callers apart, and cookies are replayed."""

    def answer(request: HttpRequest) -> HttpResponse:
        response = HttpResponse(request.headers["X-Shop-Token"])
        response.set_cookie("basket", "7")
        return response

    clear_url_caches()
    serve(path("orders/", csrf_exempt(idempotent(answer))))
    setting = run("docs/options.md", "settings.py").IDEMPOTENCY
    key = "8c0d5f4e-2f53-4d7b-9a55-0d9b4a3f2f11"
    with override_settings(IDEMPOTENCY=setting):
        refused = [client.post("/orders/", headers={"Idempotency-Key": wrong}) for wrong in (key, '"one"')]
        headers = {"Idempotency-Key": f'"{key}"'}
        answers = [client.post("/orders/", headers={**headers, "X-Shop-Token": name}) for name in ("ann", "ann", "ben")]
        assert get_settings().runbook_url == setting["RUNBOOK_URL"]
    assert [(answer.status_code, answer.json()["type"]) for answer in refused] == [
        (400, f"{setting['DOCS_URL']}#invalid-key")
    ] * 2
    assert [(a.content, a["Idempotency-Replayed"]) for a in answers] == [
        (b"ann", "false"),
        (b"ann", "true"),
        (b"ben", "false"),
    ]
    assert [a.cookies["basket"].value for a in answers] == ["7"] * 3


@pytest.mark.django_db
def test_without_the_package_no_key_is_needed(run: Any, serve: Any, client: Client) -> None:
    """Only inside of the test that says so."""
    clear_url_caches()
    serve(path("cards/", run("docs/options.md", "shop/cards.py").create_card))
    run("docs/options.md", "shop/test_without_keys.py").test_an_order_needs_no_key(client)
    assert client.post("/cards/").status_code == 400


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


@pytest.mark.django_db
def test_tenants_share_no_keys(run: Any, serve: Any, client: Client, ann: Any) -> None:
    """One user and one key of two tenants. A caller who is not logged in has a scope of its own."""

    @csrf_exempt
    @idempotent
    def create_order(request: HttpRequest) -> HttpResponse:
        return HttpResponse(Order.objects.create().pk, status=201)

    def tenants(get_response: Any) -> Any:
        def middleware(request: Any) -> HttpResponse:
            request.tenant = SimpleNamespace(pk={"a.example": 7, "b.example": 8}[request.get_host().partition(":")[0]])
            return get_response(request)

        return middleware

    serve(path("orders/", create_order))
    sys.modules["documented_urls"].tenants = tenants  # type: ignore[attr-defined]

    def order(sender: Client, host: str) -> Any:
        return sender.post("/orders/", headers={"Idempotency-Key": "one", "Host": host}).content

    scope = run("docs/databases.md", "shop/scopes.py").tenant_and_user
    middleware = ["documented_urls.tenants", *settings.MIDDLEWARE]
    with override_settings(IDEMPOTENCY={"SCOPE": scope}, MIDDLEWARE=middleware):
        user, anyone = Client(), Client()
        user.force_login(ann)
        assert order(user, "a.example") == order(user, "a.example:443")
        assert len({order(who, host) for who in (user, anyone) for host in ("a.example", "b.example")}) == 4
    assert set(IdempotencyKey.objects.values_list("scope", flat=True)) == {
        f"{tenant}:{who}" for who in (ann.pk, "anonymous") for tenant in (7, 8)
    }


@pytest.mark.django_db(databases=["default", "other"])
def test_keys_are_where_the_orders_are(run: Any, serve: Any, client: Client) -> None:
    """On the other alias, both."""
    serve(path("orders/", run("docs/databases.md", "shop/archive.py").create_order))
    first, again = (client.post("/orders/", headers={"Idempotency-Key": "one"}).json() for _ in range(2))
    assert first == again
    assert [Order.objects.using(alias).count() for alias in connections] == [0, 1]
    assert [IdempotencyKey.objects.using(alias).count() for alias in connections] == [0, 1]


@pytest.mark.django_db
def test_the_runbook_finds_what_needs_attention(run: Any) -> None:
    """Stuck, in doubt and half done, also under the same key of another caller; and none of the others."""
    attention = run("docs/runbook.md", "shop/attention.py")
    for status in ("completed", "in_progress", "failed", "abandoned"):
        create_key(status, status=status)
    create_key("charged", steps={"charge": 7})
    other = create_key("failed", in_doubt=["refund"], scope="7")
    rows = {row.key: row for row in IdempotencyKey.objects.exclude(pk=other.pk)}
    now = timezone.now()
    rows["failed"].steps.create(name="charge", kind="call", attempt=1, started_at=now)
    rows["abandoned"].steps.create(name="order", kind="write", attempt=1, started_at=now, finished_at=now, result="7")

    assert attention.report() == {
        rows["abandoned"].pk: ["POST orders/ abandoned of anonymous", "write order: done 7"],
        rows["charged"].pk: ["POST orders/ charged of anonymous", 'call charge: done {"value": 7}'],
        rows["failed"].pk: ["POST orders/ failed of anonymous", "call charge: IN DOUBT"],
        other.pk: ["POST orders/ failed of 7", "call refund: IN DOUBT"],
    }


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("page", "header"), [("django_idempotency_key", "X-Request-Key"), ("drf_idempotency", "Idempotency-Key")]
)
def test_a_migrated_project_keeps_its_header(run: Any, serve: Any, client: Client, page: str, header: str) -> None:
    """The settings of the page are accepted, and clients go on as before."""
    serve(path("orders/", idempotent(lambda request: HttpResponse(Order.objects.create().pk, status=201))))
    with override_settings(IDEMPOTENCY=run("docs/operations.md", f"after/{page}.py").IDEMPOTENCY):
        answers = [client.post("/orders/", {"reference": name}, headers={header: "one"}) for name in ("a", "a", "b")]
    assert [answer.status_code for answer in answers] == [201, 201, 422]
    assert (answers[0].content, Order.objects.count()) == (answers[1].content, 1)
