"""The examples of docs/testing.md, with the views of the other pages."""

import re
import sys
from inspect import signature

import pytest
from django.urls import clear_url_caches, path

from django_idempotency.testing import assert_idempotent, create_key
from tests.acceptance.pages import ROOT
from tests.shopapp import models


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
    with pytest.raises(AssertionError, match="POST /orders/: not protected"):
        prove(client)
    clear_url_caches()


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


def test_every_argument_of_the_testing_tools_is_described():
    """A row names each parameter, and nothing that does not exist."""
    prove, make = (ROOT / "docs/testing.md").read_text().split("## Make keys")
    for text, function in ((prove, assert_idempotent), (make, create_key)):
        table = text.split("| Argument | Meaning |")[1]
        named = re.findall(r"`\**(\w+)`", " ".join(re.findall(r"(?m)^\| (`.*?) \|", table)))
        assert sorted(named) == sorted(signature(function).parameters)
