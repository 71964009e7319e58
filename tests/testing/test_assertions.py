"""What `assert_idempotent` refuses before it sends anything."""

from __future__ import annotations

import pytest
from django.db import connections
from django.test import AsyncClient, Client

from django_idempotency.testing import assert_idempotent
from tests.shopapp.models import Order
from tests.testing.requests import DATA

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.endpoint_urls")]


def test_an_asynchronous_client_is_refused(async_client: AsyncClient) -> None:
    """The other one tests asynchronous views too."""
    with pytest.raises(TypeError, match=r"needs django\.test\.Client, which tests asynchronous views too"):
        assert_idempotent(async_client, "/asynchronous")


def test_inside_a_transaction_nothing_can_run_at_once(client: Client) -> None:
    """Other connections see nothing of it; nothing has been sent yet."""
    with pytest.raises(RuntimeError, match=r"Use django\.test\.TransactionTestCase, or @pytest\.mark\.django_db"):
        assert_idempotent(client, "/good", DATA, transaction=True)
    assert not Order.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_in_memory_sqlite_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads would not really run at once."""
    monkeypatch.setattr(connections["default"], "vendor", "sqlite")
    monkeypatch.setattr(connections["default"], "is_in_memory_db", lambda: True, raising=False)
    with pytest.raises(RuntimeError, match=r"it is an in-memory SQLite\. Give it a file"):
        assert_idempotent(client, "/good", DATA, transaction=True)
