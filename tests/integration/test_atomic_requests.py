"""ATOMIC_REQUESTS: who opens the transaction of a protected view."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import transaction
from django.test import Client, override_settings

from tests.integration import edge_urls
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.view_urls")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("atomic_requests")
class TestAtomicRequests:
    @pytest.mark.parametrize("path", ["/handlers", "/dispatched"])
    def test_an_unprotected_method_keeps_its_transaction(self, client: Client, path: str) -> None:
        """Whether Django opens it or we do."""
        assert client.get(path).json() == {"atomic": True}

    def test_an_optional_key_keeps_the_transaction(self, post: Post) -> None:
        """Passing through is as Django would have done."""
        assert post("/optional", key=None).json()["atomic"] is True

    @pytest.mark.parametrize(("path", "around"), [("/depth", 0), ("/depth_dispatch", 0), ("/depth_handler", 1)])
    def test_our_transaction_is_the_outermost_where_the_mark_reaches(self, post: Post, path: str, around: int) -> None:
        """On a single handler Django's own is around it."""
        assert post(path).json() == {"savepoints": around}

    def test_a_view_that_opted_out_stays_out(self, post: Post) -> None:
        """non_atomic_requests is respected."""
        assert post("/opted_out", key=None).json() == {"atomic": False}


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_another_alias_is_taken_over_only_if_it_is_atomic(post: Post) -> None:
    """using="other" has no ATOMIC_REQUESTS here, so nothing is to be opened for a request that passes through."""
    assert post("/elsewhere", key=None).status_code == 400
    with override_settings(IDEMPOTENCY={"ENABLED": False}):
        assert post("/elsewhere", key=None).status_code == 201


def test_an_unprotected_method_needs_no_resolver_match(rf: Any) -> None:
    """A view that is called directly, as in a unit test, passes through."""
    with transaction.atomic():
        assert edge_urls.create(rf.put("/")).status_code == 201
    assert Order.objects.count() == 1


def test_an_unprotected_method_needs_no_function_in_the_match(rf: Any) -> None:
    """A unit test may give its request a match of its own, which has only what the view asks for."""
    request = rf.put("/")
    request.resolver_match = SimpleNamespace(namespace="v1")
    with transaction.atomic():
        assert edge_urls.create(request).status_code == 201
    assert Order.objects.count() == 1
