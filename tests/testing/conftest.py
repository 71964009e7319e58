"""`assert_idempotent` fails, and says this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_idempotency.testing import assert_idempotent
from tests.shopapp.models import Order
from tests.testing import endpoint_urls, leased_urls
from tests.testing.endpoint_urls import DATA


@pytest.fixture(autouse=True)
def _fresh() -> None:
    endpoint_urls.HOOKS.clear()
    leased_urls.MADE.clear()


@pytest.fixture
def fails(client: Client) -> Callable[..., str]:
    """The message of the failure, whose headline says this."""

    def check(path: str, headline: str, **arguments: Any) -> str:
        arguments = {"data": DATA, "creates": Order, "client": client, **arguments}
        with pytest.raises(AssertionError) as caught:
            assert_idempotent(arguments.pop("client"), path, **arguments)
        message = str(caught.value)
        assert message.startswith(f"POST {path}: {headline}"), message
        return message

    return check
