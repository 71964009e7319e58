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


@pytest.mark.django_db
def test_one_decision_about_many_keys_as_shown(run, serve, client, gateway):
    """After an outage of the gateway, each retry runs again."""
    sys.modules["shop"].gateway = gateway
    careful = run("docs/leased-failures.md", "shop/careful.py")
    serve(path("pay/", idempotent(lease=60, on_abandoned="hold")(careful.pay.__wrapped__.__wrapped__.__wrapped__)))
    client.raise_request_exception = False
    gateway.down = True
    keys = [{"Idempotency-Key": name} for name in ("one", "two")]
    before = timezone.now() - timedelta(minutes=1)
    assert [client.post("/pay/", headers=key).status_code for key in keys] == [500, 500]

    outage = run("docs/leased-failures.md", "shop/after_an_outage.py")
    resolved = outage.the_gateway_was_down(before)

    assert (resolved.resolved, resolved.refused) == (2, 0)
    gateway.down = False
    assert [client.post("/pay/", headers=key).status_code for key in keys] == [201, 201]


def test_the_setting_of_encryption_keys_works_as_shown(run, monkeypatch):
    """Several keys, separated by spaces."""
    pytest.importorskip("cryptography")
    monkeypatch.setenv("IDEMPOTENCY_KEYS", f"{'n' * 43}= {'o' * 43}=")
    setting = run("docs/operations.md", "settings.py").IDEMPOTENCY
    with override_settings(IDEMPOTENCY=setting):
        assert get_settings().encryption_keys is not None
