"""What the tests of a key's pages share: a key whose charge is in doubt, and a person who may decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_idempotency.models import IdempotencyKey
from tests.admin_pages import staff
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, breaks, row


@pytest.fixture(autouse=True)
def _clean() -> None:
    GATEWAY.reset()
    HOOKS.clear()


@pytest.fixture
def in_doubt(post: Callable[..., Any]) -> IdempotencyKey:
    GATEWAY.after = breaks
    with pytest.raises(Broken):
        post("/pay/hold")
    GATEWAY.after = lambda: None
    return row()


@pytest.fixture
def operator() -> Client:
    return staff("view_idempotencykey", "resolve_idempotencykey", "view_response")
