"""What the tests of a key's pages share: a key whose charge is in doubt, and a person who may decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_idempotency.models import IdempotencyKey
from tests.admin_pages import make_key, staff, step
from tests.leased_urls import leave_in_doubt
from tests.leases import row


@pytest.fixture
def in_doubt(post: Callable[..., Any]) -> IdempotencyKey:
    leave_in_doubt(post)
    return row()


@pytest.fixture
def operator() -> Client:
    return staff("view_idempotencykey", "resolve_idempotencykey", "view_response")


@pytest.fixture
def keys() -> list[IdempotencyKey]:
    """Three failed keys under "retry", each with a call in doubt."""
    rows = [make_key(f"k-{number}", status="failed", policy="retry") for number in range(3)]
    for made in rows:
        step(made)
    return rows
