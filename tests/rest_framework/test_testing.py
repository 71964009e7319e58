"""`assert_idempotent` and `create_key` with the REST framework's own client."""

from __future__ import annotations

import pytest

pytest.importorskip("rest_framework")

from rest_framework.test import APIClient, APITestCase, APITransactionTestCase

from django_idempotency.testing import assert_idempotent
from tests.factories import UserFactory
from tests.shopapp.models import Order

DATA = {"reference": "a book", "amount": 1}
pytestmark = pytest.mark.urls("tests.rest_framework.api_urls")


def logged_in() -> APIClient:
    client = APIClient()
    client.force_authenticate(UserFactory())
    return client


class TestInATransaction(APITestCase):
    def test_a_viewset_passes(self) -> None:
        """By `format`, with users whom the client authenticates by force."""
        assert_idempotent(
            logged_in(), "/orders/", DATA, format="json", creates=Order, expect_status=201, other_client=logged_in()
        )
        assert Order.objects.count() == 2


class TestWithCommits(APITransactionTestCase):
    def test_duplicates_at_once(self) -> None:
        """Threads with copies of the client, and the user it authenticates by force."""
        assert_idempotent(logged_in(), "/orders/", DATA, format="json", creates=Order, transaction=True)
        assert Order.objects.count() == 2
