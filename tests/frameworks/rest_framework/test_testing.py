"""`assert_idempotent` with the REST framework's own client."""

from __future__ import annotations

import pytest

pytest.importorskip("rest_framework")

from rest_framework.test import APIClient, APITransactionTestCase

from django_idempotency.testing import assert_idempotent
from tests.factories import UserFactory
from tests.shopapp.models import Order

DATA = {"reference": "a book", "amount": 1}
pytestmark = pytest.mark.urls("tests.frameworks.rest_framework.api_urls")


def logged_in() -> APIClient:
    client = APIClient()
    client.force_authenticate(UserFactory())
    return client


class TestWithCommits(APITransactionTestCase):
    def test_a_viewset_passes(self) -> None:
        """By `format`, with users whom the client authenticates by force; and duplicates at once, whose threads have
        copies of the client and of its user."""
        assert_idempotent(
            logged_in(),
            "/orders/",
            DATA,
            format="json",
            creates=Order,
            expect_status=201,
            other_client=logged_in(),
            transaction=True,
        )
        assert Order.objects.count() == 3
