"""The guides: what their most important examples do."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.admin import AdminSite
from django.core import mail
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import clear_url_caches, include, path
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from django_idempotency import OutcomeUnknown, idempotent
from django_idempotency.maintenance import recover_idempotency_keys
from django_idempotency.models import IdempotencyKey
from tests.acceptance.pages import ROOT
from tests.factories import UserFactory
from tests.shopapp import models


# Django 6.1 warns of a project without MAILERS, a setting that 5.2 does not know.
@pytest.mark.filterwarnings("ignore:.*(default mailer|MAILERS)")
@pytest.mark.django_db(transaction=True)
def test_a_mail_is_sent_once(run: Any, monkeypatch: Any) -> None:
    """A second call sends nothing. A mail whose server has failed is held for a person."""
    recipe = run("docs/recipes.md", "shop/mail.py")
    assert [recipe.confirm(7, "ann@shop.example") for _ in range(2)] == [False, True]
    assert [message.subject for message in mail.outbox] == ["Your order"]

    smtp = {"EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend", "EMAIL_PORT": 1}
    with override_settings(**smtp), pytest.raises(ConnectionRefusedError):
        recipe.confirm(8, "ann@shop.example")
    with pytest.raises(OutcomeUnknown):
        recipe.confirm(8, "ann@shop.example")
    assert len(mail.outbox) == 1


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
        models.Order.objects.all().delete()
        IdempotencyKey.objects.all().delete()
    assert client.post("/orders/", {"amount": 1}).status_code == 400
    assert client.post("/orders/", {"amount": 1}, headers={"X-Client": "legacy"}).status_code == 201
    order = models.Order.objects.create(reference="ann", amount=2)
    double, keyed = f"/orders/{order.pk}/double/", {"headers": {"Idempotency-Key": "one"}}
    assert [client.post(double, **keyed).json() for _ in range(2)] == [{"amount": 4}] * 2
    assert client.post(double).status_code == 200
    models.Order.objects.update(reference="ben")
    assert client.post(double, **keyed).status_code == 403


class LaggingReplica:
    """Everything is read from a database that has nothing yet."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model is models.Order else None


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("later", ["deleted", "on a replica that lags"])
def test_a_check_before_a_replay_does_not_refuse_the_owner(
    run: Any, serve: Any, client: Client, ann: Any, settings: Any, later: str
) -> None:
    """Of `OrderViewSet`, by the REST framework's page."""
    routers = pytest.importorskip("rest_framework.routers")
    shop = routers.DefaultRouter()
    shop.register("orders", run("docs/drf.md", "shop/orders.py").OrderViewSet, basename="order")
    clear_url_caches()
    serve(path("", include(shop.urls)))
    order = models.Order.objects.create(reference="ann", amount=2)
    double, keyed = f"/orders/{order.pk}/double/", {"headers": {"Idempotency-Key": "one"}}
    assert client.post(double, **keyed).json() == {"amount": 4}
    if later == "deleted":
        assert client.delete(f"/orders/{order.pk}/").status_code == 204
    else:
        settings.DATABASE_ROUTERS = [LaggingReplica()]
        assert client.get(f"/orders/{order.pk}/").status_code == 404
    answer = client.post(double, **keyed)
    assert (answer.status_code, answer.headers["Idempotency-Replayed"], answer.json()) == (200, "true", {"amount": 4})


@pytest.mark.django_db
def test_a_number_of_the_clients_own(run: Any, serve: Any, django_user_model: Any) -> None:
    """Each customer has their own numbers. When the key has expired, the constraint still refuses a second purchase."""
    clear_url_caches()
    serve(path("purchases/", run("docs/where.md", "shop/numbered.py").purchase))

    def buy(customer: str, amount: int, number: Any = "A-1") -> Any:
        client = Client()
        client.force_login(django_user_model.objects.get_or_create(username=customer)[0])
        return client.post("/purchases/", {"number": number, "amount": amount}, content_type="application/json")

    answers = [buy("ann", 5), buy("ann", 5), buy("ben", 5)]
    assert [(answer.status_code, answer.headers["Idempotency-Replayed"]) for answer in answers] == [
        (201, "false"),
        (201, "true"),
        (201, "false"),
    ]
    assert answers[0].content == answers[1].content != answers[2].content
    refused = [buy("ann", 6), Client().post("/purchases/", {"number": "A-1"}), buy("ann", 5, number="")]
    assert [answer.status_code for answer in refused] == [422, 302, 400]
    IdempotencyKey.objects.all().delete()
    assert buy("ann", 5).status_code == 409
    assert sorted(models.Purchase.objects.values_list("customer", "number", "amount")) == [
        ("ann", "A-1", 5),
        ("ben", "A-1", 5),
    ]


@pytest.mark.django_db
def test_a_row_pauses_the_endpoints(run: Any, serve: Any, client: Client) -> None:
    """Without a deployment, and for as long as the row says so."""
    serve(path("pay/", idempotent(lambda request: HttpResponse("paid"))))
    switch = models.Switch.objects.create(name="payments", paused=True)
    given = run("docs/operations.md", "pausing_settings.py").IDEMPOTENCY
    paused = run("docs/operations.md", given["PAUSED"].rpartition(".")[0].replace(".", "/") + ".py").paused

    def sent() -> tuple[int, str | None]:
        answer = client.post("/pay/", headers={"Idempotency-Key": "one"})
        return answer.status_code, answer.headers.get("Retry-After")

    with override_settings(IDEMPOTENCY={"PAUSED": paused}):
        assert [sent(), sent()] == [(503, "60")] * 2
        models.Switch.objects.filter(pk=switch.pk).update(paused=False)
        assert sent() == (200, None)


def uuid7(days_ago: int = 0) -> str:
    """A UUID of version 7 that was made so many days ago."""
    made = timezone.now() - timedelta(days=days_ago)
    return str(UUID(int=int(made.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62))


@pytest.mark.django_db
def test_the_options_of_the_first_example(run: Any, serve: Any, client: Client) -> None:
    """Callers who cannot be told apart, and old keys, are refused. A secret is not stored, and never runs again."""
    clear_url_caches()
    cards = run("docs/options.md", "shop/cards.py")
    serve(path("cards/", cards.create_card))

    def send(amount: int, key: str = uuid7(), **headers: str) -> Any:
        answer = client.post("/cards/", {"amount": amount}, headers={"Idempotency-Key": key, **headers})
        return answer.status_code, answer.json().get("code")

    assert send(1) == (403, "unidentified-caller")
    caller = {"X-Api-Key": "shop"}
    assert send(1, uuid7(days_ago=2), **caller) == (409, "key-too-old")
    assert [send(amount, **caller) for amount in (1, 1, 2)] == [
        (201, None),
        (409, "response-not-stored"),
        (409, "already-used"),
    ]


@pytest.mark.django_db
def test_the_settings_of_the_example(run: Any, serve: Any, client: Client) -> None:
    """Quoted UUIDs only, a header of the project tells callers apart, cookies are replayed, what is large is not."""

    def answer(request: HttpRequest) -> HttpResponse:
        response = HttpResponse(request.headers["X-Shop-Token"] * int(request.POST.get("times", 1)))
        response.set_cookie("basket", "7")
        return response

    clear_url_caches()
    serve(path("orders/", csrf_exempt(idempotent(answer))))
    setting = run("docs/options.md", "settings.py").IDEMPOTENCY
    key = "8c0d5f4e-2f53-4d7b-9a55-0d9b4a3f2f11"
    with override_settings(IDEMPOTENCY=setting):
        refused = client.post("/orders/", headers={"X-Request-Key": '"one"'})
        headers = {"X-Request-Key": f'"{key}"'}
        answers = [client.post("/orders/", headers={**headers, "X-Shop-Token": name}) for name in ("ann", "ann", "ben")]
        headers = {"X-Request-Key": f'"{key}"', "X-Shop-Token": "eve"}
        large = [client.post("/orders/", {"times": 40_000}, headers=headers).status_code for _ in range(2)]
    assert (refused.status_code, refused.json()["type"]) == (400, f"{setting['DOCS_URL']}#invalid-key")
    assert [(a.content, a["X-Replayed"]) for a in answers] == [
        (b"ann", "false"),
        (b"ann", "true"),
        (b"ben", "false"),
    ]
    assert [a.cookies["basket"].value for a in answers] == ["7"] * 3
    assert large == [200, 409]


@pytest.mark.django_db
def test_without_the_package_no_key_is_needed(run: Any, serve: Any, client: Client) -> None:
    """Only inside of the test that says so."""
    clear_url_caches()
    serve(path("cards/", run("docs/options.md", "shop/cards.py").create_card))
    run("docs/options.md", "shop/test_without_keys.py").test_an_order_needs_no_key(client)
    assert client.post("/cards/").status_code == 400


@pytest.mark.django_db
def test_a_longer_ttl_runs_no_key_again_that_is_kept_longer(run: Any, serve: Any, client: Client) -> None:
    """Its row has expired under a `ttl` of a day: the key is refused, and known again after the step."""
    clear_url_caches()
    serve(path("cards/", run("docs/options.md", "shop/cards.py").create_card))
    headers = {"X-Api-Key": "shop", "Idempotency-Key": uuid7()}
    assert client.post("/cards/", headers=headers).status_code == 201
    IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=1))

    with override_settings(IDEMPOTENCY={"TTL": timedelta(days=7)}):
        assert client.post("/cards/", headers=headers).json()["code"] == "key-too-old"
        run("docs/keys.md", "shop/longer_ttl.py").keep_longer("POST cards/", timedelta(days=6))
        assert client.post("/cards/", headers=headers).json()["code"] == "response-not-stored"


@pytest.mark.django_db
def test_one_decision_about_many_keys_as_shown(run, serve, client, gateway):
    """After an outage of the gateway, each retry runs again."""
    sys.modules["shop"].gateway = gateway
    careful = run("docs/interrupted.md", "shop/careful.py")
    held = idempotent(operation="pay", lease=60, on_abandoned="hold")
    serve(path("pay/", held(careful.pay.__wrapped__.__wrapped__.__wrapped__)))
    client.raise_request_exception = False
    gateway.down = True
    keys = [{"Idempotency-Key": name} for name in ("one", "two")]
    before = timezone.now() - timedelta(minutes=1)
    assert [client.post("/pay/", headers=key).status_code for key in keys] == [500, 500]

    outage = run("docs/interrupted.md", "shop/support.py")
    resolved = outage.the_gateway_was_down(before)

    assert (resolved.resolved, resolved.refused) == (2, 0)
    gateway.down = False
    assert [client.post("/pay/", headers=key).status_code for key in keys] == [201, 201]


@pytest.mark.django_db
def test_a_second_key_gets_past_a_gateway_that_replays_its_error(run, serve, client, gateway):
    """Its first derived key is lost for good: the second call charges once, and makes the one order."""
    answered: dict[str, bool] = {}
    charge = gateway.charge

    def replaying(amount: int, *, idempotency_key: str) -> Any:
        if not answered.setdefault(idempotency_key, bool(answered)):
            raise ConnectionError("500")
        return charge(amount, idempotency_key=idempotency_key)

    gateway.charge = replaying
    sys.modules["shop"].gateway = gateway
    serve(path("pay/", run("docs/interrupted.md", "shop/second_key.py").pay))
    client.raise_request_exception = False

    sent = [client.post("/pay/", headers={"Idempotency-Key": "one"}).status_code for _ in range(3)]

    assert sent == [500, 201, 201]
    assert (len(gateway.books), models.Order.objects.count()) == (1, 1)


@pytest.mark.django_db
def test_the_recovery_asks_the_example(run, serve, client, gateway):
    """Its client does not come back: the charge is recorded, and the key waits for the next retry."""
    sys.modules["shop"].gateway = gateway
    serve(path("pay/", run("docs/interrupted.md", "shop/careful.py").pay))
    client.raise_request_exception = False
    gateway.down = True
    assert client.post("/pay/", headers={"Idempotency-Key": "one"}).status_code == 500
    assert recover_idempotency_keys().left == 0  # too young

    IdempotencyKey.objects.update(created_at="2020-01-01T00:00Z", updated_at="2020-01-01T00:00Z")

    assert recover_idempotency_keys().left == 1
    assert IdempotencyKey.objects.get().steps.get().result == '{"value": {"id": "ch_1"}}'
    assert len(gateway.books) == 1


@pytest.mark.django_db
def test_the_recovery_builds_the_order_without_the_request(run, serve, client, gateway, monkeypatch):
    """The worker has died between the charge and the order. The client's late retry gets the answer."""
    sys.modules["shop"].gateway = gateway
    client.force_login(UserFactory())  # the example sends the caller as metadata of the charge
    serve(path("pay/", run("docs/operations.md", "shop/without_the_request.py").pay))
    client.raise_request_exception = False

    def sent() -> Any:
        return client.post("/pay/", {"amount": 4990}, content_type="application/json", headers={"Idempotency-Key": "k"})

    with monkeypatch.context() as dying:
        dying.setattr(models.Order.objects, "create", lambda **fields: sys.exit())
        with pytest.raises(SystemExit):
            sent()
    assert (len(gateway.books), models.Order.objects.count()) == (1, 0)
    recover_idempotency_keys(older_than=0)
    order = models.Order.objects.get()
    assert order.amount == 4990
    assert (sent().content, len(gateway.books)) == (b'{"order": %d}' % order.pk, 1)


@pytest.mark.django_db
@pytest.mark.parametrize("dies", [False, True])
def test_a_declined_card_gets_no_order(run: Any, serve: Any, client: Client, gateway: Any, dies: bool) -> None:
    """The retry neither, nor the recovery of a key whose view died before it answered."""
    sys.modules["shop"].gateway = gateway  # type: ignore[attr-defined]
    gateway.charge = lambda *args, **kwargs: {"declined": "no funds"}
    page = run("docs/operations.md", "shop/without_the_request.py")
    serve(path("pay/", page.pay))

    def sent() -> Any:
        return client.post("/pay/", {"amount": 4990}, content_type="application/json", headers={"Idempotency-Key": "k"})

    if dies:
        with pytest.MonkeyPatch.context() as dying:
            dying.setattr(sys.modules["documented"], "order_of", lambda *args: sys.exit())
            with pytest.raises(SystemExit):
                sent()
        recover_idempotency_keys(older_than=0)
    else:
        assert sent()["Idempotency-Replayed"] == "false"
    again = sent()
    assert (again.status_code, again.json()) == (402, {"code": "declined"})
    assert again["Idempotency-Replayed"] == "true"
    assert models.Order.objects.count() == 0


@pytest.mark.django_db
def test_the_add_view_of_the_admin(
    run: Any, serve: Any, admin_client: Client, django_user_model: Any, monkeypatch: Any, settings: Any
) -> None:
    """An error may be corrected, a double click adds one row, and whoever may not add rows any more gets no replay."""
    html = re.findall(
        r"```html\n<!-- \S+templates/admin/shop/(\S+) -->\n(.*?)```", (ROOT / "docs/recipes.md").read_text(), re.DOTALL
    )
    pages = {f"admin/shopapp/{name}": text for name, text in html}
    engine = {**settings.TEMPLATES[0], "APP_DIRS": False}
    loaders = [("django.template.loaders.locmem.Loader", pages), "django.template.loaders.app_directories.Loader"]
    settings.TEMPLATES = [{**engine, "OPTIONS": {**engine["OPTIONS"], "loaders": loaders}}]
    shop = AdminSite()
    shop.register(models.Order, run("docs/recipes.md", "shop/admin.py").OrderAdmin)
    clear_url_caches()
    serve(path("admin/", shop.urls))
    add = "/admin/shopapp/order/add/"
    (key,) = re.findall(r'name="idempotency_key" value="(\S+)"', admin_client.get(add).content.decode())
    wrong = admin_client.post(add, {"idempotency_key": key, "reference": "a book", "amount": ""})
    assert (wrong.status_code, wrong["Idempotency-Replayed"]) == (200, "false")  # the same key corrects it
    answers = []
    for may in (True, True, False):
        monkeypatch.setattr(django_user_model, "has_perm", lambda *args, may=may: may)
        answers.append(admin_client.post(add, {"idempotency_key": key, "reference": "a book", "amount": 1}))
    assert [answer.status_code for answer in answers] == [302, 302, 403]
    assert [answer["Idempotency-Replayed"] for answer in answers] == ["false", "true", "false"]
    assert models.Order.objects.count() == 1


@pytest.mark.django_db
def test_a_page_of_another_origin(run: Any, serve: Any, client: Client, settings: Any) -> None:
    """The browser may send the key, and the page reads our headers, of a first answer, a replay and an error."""
    pytest.importorskip("corsheaders")
    for name, value in vars(run("docs/recipes.md", "spa_settings.py")).items():
        if name.isupper():
            setattr(settings, name, value)
    settings.MIDDLEWARE = ["corsheaders.middleware.CorsMiddleware", *settings.MIDDLEWARE]
    serve(path("orders", idempotent(lambda request: HttpResponse(status=201))))
    origin = {"Origin": "https://shop.example"}
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "idempotency-key"}
    preflight = client.options("/orders", headers={**origin, **asked})
    assert "idempotency-key" in preflight["Access-Control-Allow-Headers"].split(", ")
    assert preflight["Access-Control-Allow-Credentials"] == "true"
    answers = [client.post("/orders", headers={**origin, "Idempotency-Key": "one"}) for _ in range(2)]
    answers.append(client.post("/orders", headers=origin))
    told = [(answer.status_code, answer["Idempotency-Replayed"]) for answer in answers]
    assert told == [(201, "false"), (201, "true"), (400, "false")]
    for answer in answers:
        assert answer["Access-Control-Allow-Origin"] == "https://shop.example"
        assert answer["Access-Control-Expose-Headers"] == "Idempotency-Replayed, Retry-After"
    assert "Access-Control-Allow-Origin" not in client.post(
        "/orders", headers={"Origin": "https://other.example", "Idempotency-Key": "one"}
    )
