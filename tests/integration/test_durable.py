"""Leased transactions commit when they end: none is open around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.models import IdempotencyKey
from tests.integration.leased_urls import GATEWAY, HOOKS

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.leased_urls")]


@pytest.fixture(autouse=True)
def _clean() -> None:
    GATEWAY.reset()
    HOOKS.clear()


class TestTransactions:
    @pytest.mark.django_db(transaction=True)
    def test_it_is_refused_inside_a_transaction(self, post: Post) -> None:
        """Its claim could not commit first."""
        with transaction.atomic(), pytest.raises(IdempotencyConfigurationError, match="reached inside a transaction"):
            post("/pay")
        assert not IdempotencyKey.objects.exists()

    @pytest.mark.django_db(transaction=True)
    def test_it_is_refused_without_autocommit(self, post: Post) -> None:
        """The same."""
        transaction.set_autocommit(False)
        try:
            with pytest.raises(IdempotencyConfigurationError, match="reached inside a transaction"):
                post("/pay")
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        assert not IdempotencyKey.objects.exists()

    @pytest.mark.django_db(transaction=True)
    def test_under_atomic_requests_we_take_the_alias_over(self, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
        """A function view needs nothing."""
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
        depths: list[bool] = []
        HOOKS["between"] = lambda operation: depths.append(connection.in_atomic_block)
        assert post("/pay").status_code == 201
        assert depths == [False]
