from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.test import Client, override_settings
from django.urls import clear_url_caches, path

from django_idempotency import idempotent
from django_idempotency.models import IdempotencyKey
from tests.acceptance.pages import ROOT, templates
from tests.shopapp import models


@pytest.mark.django_db
def test_the_first_example_creates_one_order(run, serve, client):
    """Posted twice under one key, it creates one order and answers with the same bytes."""
    views = run("README.md", "shop/views.py")

    serve(path("orders/", views.create_order))(client, "/orders/", {"reference": "a book", "amount": 1})


@pytest.mark.django_db
def test_the_readme_shows_the_responses_of_the_first_example(run, serve, client):
    """Both commands are the same request; what the page shows of each response is what it has."""
    clear_url_caches()
    serve(path("orders/", run("README.md", "shop/views.py").create_order))
    (console,) = re.findall(r"(?s)```console\n(.*?)```", (ROOT / "README.md").read_text())
    first, second = re.split(r"(?m)^\$ ", console)[1:]
    assert first.partition("\n")[0] == second.partition("\n")[0]
    key, data = re.findall(r"'Idempotency-Key: (.*?)'", first)[0], dict(re.findall(r"-d (\w+)=(\w+)", first))
    for shown in (first, second):
        response = client.post("/orders/", data, headers={"Idempotency-Key": key})
        head, body = shown.strip().split("\n\n")
        status, *headers = head.splitlines()[1:]
        assert status == f"HTTP/1.1 {response.status_code} {response.reason_phrase}"
        assert dict(line.split(": ") for line in headers).items() <= response.headers.items()
        assert body == re.sub(r"\d+", "1", response.content.decode())


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["reorder", "OrderView"])
def test_the_examples_with_a_login_create_one_order(name, run, serve, client, django_user_model):
    """Function and class, each below its login check, which comes first."""
    view = getattr(run("docs/views.md", "shop/members.py"), name)
    send = serve(path("again/", view.as_view() if isinstance(view, type) else view))
    assert client.post("/again/", {"amount": 1}, headers={"Idempotency-Key": "one"}).status_code == 302
    client.force_login(django_user_model.objects.create_user("somebody"))

    send(client, "/again/", {"amount": 1})


@pytest.mark.django_db
def test_the_ninja_operation_creates_one_order(run, serve, client):
    """With its token; a refusal is replayed too, without the order."""
    pytest.importorskip("ninja")
    send = serve(path("", run("docs/ninja.md", "shop/ninja_api.py").api.urls))
    client = Client(headers={"Authorization": "Bearer shop-1"})

    send(client, "/orders", {"reference": "a book", "amount": 1}, content_type="application/json")
    for mark in ("false", "true"):
        data, headers = {"reference": "a car", "amount": 9000}, {"Idempotency-Key": "two"}
        response = client.post("/orders", data, content_type="application/json", headers=headers)
        assert (response.status_code, response["Idempotency-Replayed"]) == (402, mark)
    assert models.Order.objects.count() == 1


@pytest.mark.django_db
def test_the_form_is_clicked_twice(run, serve):
    """The page's template, its view, and a browser that sends what it was shown, and corrects it after an error."""
    client = Client(enforce_csrf_checks=True)
    engine = {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", templates("docs/views.md"))]},
    }
    with override_settings(TEMPLATES=[engine]):
        serve(path("order/", run("docs/views.md", "shop/forms.py").OrderView.as_view()))
        page = client.get("/order/").content.decode()
        fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]+)">', page))
        refused = client.post("/order/", {**fields, "reference": "a book", "amount": ""})
        answers = [client.post("/order/", {**fields, "reference": "a book", "amount": 1}) for _ in range(2)]

    assert (refused.status_code, refused.context["form"].errors.keys()) == (200, {"amount"})
    assert [(a.status_code, a["Location"], a["Idempotency-Replayed"]) for a in answers] == [
        (302, "/thanks/", "false"),
        (302, "/thanks/", "true"),
    ]
    assert models.Order.objects.count() == 1


@pytest.mark.django_db
def test_a_captcha_inside_the_view_lets_a_double_click_make_one_order(run, serve, client, monkeypatch):
    """The second click gets the first one's redirect, and a refused captcha can be solved again in the same form."""
    solved = {"right"}
    captcha = SimpleNamespace(passes=lambda token: solved.discard(token) is None if token in solved else False)
    monkeypatch.setitem(sys.modules, "shop.captcha", captcha)
    serve(path("buy/", run("docs/views.md", "shop/tickets.py").buy))

    def click(token: str) -> Any:
        return client.post("/buy/", {"idempotency_key": "one", "captcha": token})

    answers = [click(token) for token in ("wrong", "right", "right")]
    assert [(each.status_code, each["Idempotency-Replayed"]) for each in answers] == [
        (400, "false"),
        (302, "false"),
        (302, "true"),
    ]
    assert models.Order.objects.count() == 1


@pytest.mark.django_db
def test_the_webhook_is_delivered_twice(run, serve, client):
    """Signed, it makes one order; unsigned, it is refused and uses up no id."""
    hooks = run("docs/events.md", "shop/webhooks.py")
    serve(path("paid/", hooks.paid))

    def deliver(body: bytes, signature: str) -> Any:
        return client.post("/paid/", body, content_type="application/json", headers={"X-Signature": signature})

    assert deliver(b'{"id": "evt_1", "type": "paid"}', "forged").status_code == 401
    for number, mark in enumerate(("false", "true")):
        body = b'{"id": "evt_1", "type": "paid", "amount": 5, "attempt": %d}' % number
        response = deliver(body, hooks.hmac.new(hooks.SECRET, body, "sha256").hexdigest())
        assert (response.status_code, response["Idempotency-Replayed"]) == (204, mark)
    assert models.Order.objects.get().amount == 5


@pytest.mark.django_db
def test_two_events_of_one_payment_are_two(run, serve, client):
    """Some senders name the payment in each of its events. Without a usable id, the sender gets 400."""
    hooks = run("docs/events.md", "shop/webhooks.py")
    serve(path("refunded/", hooks.refunded))
    models.Order.objects.create(reference="a book", amount=20)

    def deliver(**event: Any) -> Any:
        body = json.dumps({"id": "tr_1", "order": "a book", "amount": 5, **event}).encode()
        signature = {"X-Signature": hooks.hmac.new(hooks.SECRET, body, "sha256").hexdigest()}
        return client.post("/refunded/", body, content_type="application/json", headers=signature)

    for kind in ("refunded", "charged_back", "refunded"):
        assert deliver(type=kind).status_code == 204
    assert models.Order.objects.get().amount == 10
    for wrong in ({"id": None}, {"id": True}, {"id": 1.5}, {"id": []}, {"type": None}, {"type": "ü"}):
        assert deliver(**{"type": "refunded", **wrong}).status_code == 400
    assert models.Order.objects.get().amount == 10


@pytest.mark.django_db
def test_an_event_that_overtakes_its_order_is_booked_later(run, serve, client):
    """An error frees its id: the sender delivers again. A refund that was booked is replayed."""
    hooks = run("docs/events.md", "shop/webhooks.py")
    serve(path("refunded/", hooks.refunded))
    body = b'{"id": "evt_2", "type": "refunded", "order": "a book", "amount": 5}'
    signature = {"X-Signature": hooks.hmac.new(hooks.SECRET, body, "sha256").hexdigest()}

    def deliver() -> Any:
        response = client.post("/refunded/", body, content_type="application/json", headers=signature)
        return response.status_code, response["Idempotency-Replayed"]

    early = [deliver() for _ in range(2)]
    models.Order.objects.create(reference="a book", amount=20)
    assert early == [(404, "false"), (404, "false")]
    assert [deliver() for _ in range(3)] == [(204, "false"), (204, "true"), (204, "true")]
    assert models.Order.objects.get().amount == 15


@pytest.mark.django_db
def test_the_leased_example_charges_once(run, serve, client, gateway):
    """Posted twice under one key: one charge, one order. After the `ttl`, a gateway that still knows the derived key
    answers with that charge, and the constraint of the page's model refuses a second order."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE UNIQUE INDEX one_order_a_charge ON shopapp_order (reference)")
    sys.modules["shop"].gateway = gateway
    serve(path("pay/", run("docs/leased.md", "shop/payments.py").pay))(client, "/pay/", {})
    charged = [{"id": models.Order.objects.get().reference}]
    assert list(gateway.books.values()) == charged

    IdempotencyKey.objects.update(expires_at="2020-01-01T00:00Z")
    with pytest.raises(IntegrityError):
        client.post("/pay/", {}, headers={"Idempotency-Key": '"one"'})

    assert (list(gateway.books.values()), models.Order.objects.count()) == (charged, 1)


@pytest.mark.django_db
def test_the_example_that_looks_up_charges_once(run, serve, client, gateway):
    """The gateway hangs up after charging: the retry finds the charge in its books."""
    sys.modules["shop"].gateway = gateway
    serve(path("pay/", run("docs/interrupted.md", "shop/careful.py").pay))
    client.raise_request_exception = False
    gateway.down = True
    headers = {"Idempotency-Key": "one"}
    assert client.post("/pay/", headers=headers).status_code == 500

    answer = client.post("/pay/", headers=headers)

    assert (answer.status_code, answer.json(), len(gateway.books)) == (201, {"id": "ch_1"}, 1)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("decision", "args", "status"),
    [("it_was_charged", ("ch_1",), 201), ("it_was_not_charged", (), 500), ("it_was_refunded", (), 200)],
)
def test_a_person_decides_as_shown(run, serve, client, gateway, decision, args, status):
    """After each decision the retry gets on."""
    sys.modules["shop"].gateway = gateway
    careful = run("docs/interrupted.md", "shop/careful.py")
    serve(path("pay/", idempotent(lease=60, on_abandoned="hold")(careful.pay.__wrapped__.__wrapped__.__wrapped__)))
    support = run("docs/interrupted.md", "shop/support.py")
    client.raise_request_exception, gateway.down = False, True
    pay = lambda: client.post("/pay/", headers={"Idempotency-Key": "one"}).status_code  # noqa: E731
    assert [pay(), pay()] == [500, 409]
    getattr(support, decision)(support.find("one"), *args)
    assert pay() == status


@pytest.mark.django_db
def test_the_events_are_handled_once(run):
    """The same event twice, and a loop that was killed before it acknowledged."""
    events = run("docs/events.md", "shop/events.py")
    event = {"id": "evt_1", "order": "a book", "amount": 1}

    first, again = events.place_order(event), events.place_order(event)
    assert (first[0], first[1], again[0], again[1]) == (again[0], False, first[0], True)

    acknowledged: list[Any] = []
    dead: list[Any] = []
    events.consume([event, {**event, "amount": 2}], acknowledged.append, dead.append)
    assert (acknowledged, dead) == ([event], [{**event, "amount": 2}])
    assert models.Order.objects.count() == 1
