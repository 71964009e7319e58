"""The examples of docs/testing.md, with the views of the other pages."""

import re
import shlex
import sys
import threading
from inspect import signature

import pytest
from django.core.management import CommandError, call_command
from django.http import JsonResponse
from django.urls import clear_url_caches, path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods
from pytest_django.live_server_helper import LiveServer

from django_idempotency import idempotent, probe
from django_idempotency.signals import key_event
from django_idempotency.testing import assert_idempotent, create_key
from tests.acceptance.pages import ROOT
from tests.servers import DEADLINE
from tests.shopapp import models
from tests.views import creates

PAGE = (ROOT / "docs/testing.md").read_text()


@pytest.mark.django_db(transaction=True)
def test_the_endpoint_is_proved(run, serve, client):
    """The README's view passes the documented test; without its decorator it fails as the page says."""
    prove = run("docs/testing.md", "shop/tests/test_orders.py").test_an_order_is_created_once
    view = run("README.md", "shop/views.py").create_order
    clear_url_caches()
    serve(path("orders/", view))
    prove(client)
    clear_url_caches()
    serve(path("orders/", view.__wrapped__.__wrapped__.__wrapped__))
    with pytest.raises(AssertionError) as failure:
        prove(client)
    shown = re.search(r"(?m)^ {4}AssertionError: (.*\n(?: {4}.*\n)+)", PAGE)[1]
    assert re.sub(r'"id": \d+', '"id": 1', f"{failure.value}\n") == re.sub(r"(?m)^ {4}", "", shown)
    clear_url_caches()


@pytest.mark.django_db
def test_the_list_of_endpoints_is_what_the_command_prints(run, serve, capsys):
    """For the README's endpoint, the page's refund, a method that is allowed, and a view that somebody forgot."""
    serve(
        path("orders/", run("README.md", "shop/views.py").create_order),
        path("orders/<int:pk>/", run("docs/testing.md", "shop/refunds.py").cancel),
        path("carts/", require_http_methods(["PUT"])(named("shop.carts.rename"))),
        path("carts/items/", require_http_methods(["POST"])(named("shop.carts.add"))),
    )
    command, shown = re.search(r"(?m)^ {4}\$ python manage.py (.*)\n((?: {4}.*\n|\n)+)", PAGE).groups()
    with pytest.raises(CommandError) as error:
        call_command(*shlex.split(command))
    printed = f"{capsys.readouterr().out}CommandError: {error.value}\n"
    printed = printed.replace("documented.create_order", "shop.views.create_order").replace(
        "documented.", "shop.refunds."
    )
    assert in_columns(printed) == in_columns(re.sub(r"(?m)^ {4}", "", shown).rstrip() + "\n")


def named(name):
    """A view with this dotted name."""
    view = creates()
    view.__module__, _, view.__qualname__ = name.rpartition(".")
    return view


def in_columns(text):
    """Whatever their widths, which depend on the longest name."""
    return re.sub(r"(?<=\S) {2,}", "  ", text)


@pytest.mark.django_db
def test_the_leased_example_survives_each_crash(run, serve, client, gateway):
    """The documented tests pass with the documented view: stopped at each step, and half done."""
    sys.modules["shop"].gateway = gateway
    serve(path("pay/", run("docs/leased.md", "shop/payments.py").pay))
    run("docs/testing.md", "shop/tests/test_payments.py").test_a_payment_survives_each_crash(client)
    models.Order.objects.all().delete()
    run("docs/testing.md", "shop/tests/test_interrupted.py").test_a_charge_gets_its_order(client)


@pytest.mark.django_db
def test_the_webhook_receiver_is_proved(run, serve, client, monkeypatch):
    """Its signature covers the body, which has the key. Without its decorator it fails."""
    hooks = run("docs/events.md", "shop/webhooks.py")
    monkeypatch.setitem(sys.modules, "shop.webhooks", hooks)
    serve(path("webhooks/", hooks.paid))
    prove = run("docs/testing.md", "shop/tests/test_webhooks.py")
    prove.test_an_event_is_handled_once(client)
    unprotected = hooks.signed(hooks.paid.__wrapped__.__wrapped__.__wrapped__.__wrapped__)
    clear_url_caches()
    serve(path("webhooks/", unprotected))
    with pytest.raises(AssertionError, match="POST /webhooks/: not protected"):
        prove.test_an_event_is_handled_once(client)
    clear_url_caches()


PROBE = r"(?m)^ {4}\$ python -m django_idempotency\.probe (.*)\n((?: {4}.*\n|\n)+)"


def test_the_probe_says_what_the_page_shows(capsys):
    """Typed as the page has it: nothing is sent to that address."""
    command, shown = re.search(PROBE, PAGE).groups()
    assert probe.main(shlex.split(command)) == 0
    assert capsys.readouterr().out.rstrip() == re.sub(r"(?m)^ {4}", "", shown).rstrip()


@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
def test_the_probe_prints_the_rows_of_the_page(serve, capsys):
    """With `--run`, of an endpoint whose second order takes until its 19 duplicates have been refused."""
    conflicts = threading.Semaphore(0)

    def count(event, **others):
        if event == "conflicted":
            conflicts.release()

    def wait(request, order):
        if models.Order.objects.count() == 2:
            for _ in range(19):
                assert conflicts.acquire(timeout=DEADLINE)
        return JsonResponse({"id": order.pk}, status=201)

    serve(path("orders/", csrf_exempt(idempotent(creates(then=wait)))))
    server = LiveServer("localhost")
    key_event.connect(count)
    try:
        command = re.search(PROBE, PAGE)[1].replace("https://shop.example", server.url)
        status = probe.main([*shlex.split(command), "--run"])
    finally:
        key_event.disconnect(count)
        server.stop()
    shown = re.search(r"prints a row for each:\n\n((?: {4}.*\n)+)", PAGE)[1]
    assert capsys.readouterr().out == re.sub(r"(?m)^ {4}", "", shown)
    assert (status, models.Order.objects.count()) == (0, 2)


def test_every_argument_of_the_testing_tools_is_described():
    """A row names each parameter, and nothing that does not exist."""
    prove, make = PAGE.split("## Make keys")
    for text, function in ((prove, assert_idempotent), (make, create_key)):
        table = text.split("| Argument | Meaning |")[1]
        named = re.findall(r"`\**(\w+)`", " ".join(re.findall(r"(?m)^\| (`.*?) \|", table)))
        assert sorted(named) == sorted(signature(function).parameters)
