"""A charge in doubt, and the admin's list that shows it."""

from __future__ import annotations

from typing import Any

from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import breaks

LIST_PAGE = "/admin/django_idempotency/idempotencykey/"


def fail_in_doubt(client: Any, path: str = "/pay/hold", key: str = "8e03978e") -> dict[str, str]:
    GATEWAY.reset()
    HOOKS.clear()
    GATEWAY.after = breaks
    client.raise_request_exception = False
    headers = {"Idempotency-Key": key}
    assert client.post(path, headers=headers).status_code == 500
    return headers
