"""What the tests of `assert_idempotent` send, and by whom."""

from __future__ import annotations

from django.test import Client

from tests.factories import UserFactory

DATA = {"reference": "a book", "amount": 1}


def logged_in() -> Client:
    client = Client()
    client.force_login(UserFactory())
    return client
