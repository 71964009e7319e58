"""The examples of the pages for operators do what the pages say."""

from __future__ import annotations

import sys
from datetime import timedelta

import pytest
from django.test import override_settings
from django.urls import path
from django.utils import timezone

from django_idempotency import idempotent
from django_idempotency.engine.conf import get_settings
from django_idempotency.models import IdempotencyKey


@pytest.mark.django_db
def test_one_decision_about_many_keys_as_shown(run, serve, client, gateway):
    """After an outage of the gateway, each retry runs again."""
    sys.modules["shop"].gateway = gateway
    careful = run("docs/leased.md", "shop/careful.py")
    serve(path("pay/", idempotent(lease=60, on_abandoned="hold")(careful.pay.__wrapped__.__wrapped__.__wrapped__)))
    client.raise_request_exception = False
    gateway.down = True
    keys = [{"Idempotency-Key": name} for name in ("one", "two")]
    before = timezone.now() - timedelta(minutes=1)
    assert [client.post("/pay/", headers=key).status_code for key in keys] == [500, 500]

    outage = run("docs/leased.md", "shop/after_an_outage.py")
    resolved = outage.the_gateway_was_down(before)

    assert (resolved.resolved, resolved.refused) == (2, 0)
    gateway.down = False
    assert [client.post("/pay/", headers=key).status_code for key in keys] == [201, 201]


@pytest.mark.django_db
def test_the_recovery_asks_the_example(run, serve, client, gateway):
    """Its client does not come back: the charge is recorded, and the key waits for the next retry."""
    sys.modules["shop"].gateway = gateway
    serve(path("pay/", run("docs/leased.md", "shop/careful.py").pay))
    client.raise_request_exception = False
    gateway.down = True
    assert client.post("/pay/", headers={"Idempotency-Key": "one"}).status_code == 500
    recover = run("docs/operations.md", "shop/recovery.py").every_five_minutes
    assert recover() == 0  # too young

    IdempotencyKey.objects.update(created_at="2020-01-01T00:00Z", updated_at="2020-01-01T00:00Z")

    assert recover() == 1
    assert IdempotencyKey.objects.get().steps.get().result == '{"value": {"id": "ch_1"}}'
    assert len(gateway.books) == 1


def test_the_setting_of_encryption_keys_works_as_shown(run, monkeypatch):
    """Several keys, separated by spaces."""
    pytest.importorskip("cryptography")
    monkeypatch.setenv("IDEMPOTENCY_KEYS", f"{'n' * 43}= {'o' * 43}=")
    setting = run("docs/operations.md", "settings.py").IDEMPOTENCY
    with override_settings(IDEMPOTENCY=setting):
        assert get_settings().encryption_keys is not None
