"""What is stored, for `golden.py`: what this release writes, and what it reads of what it has written."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.at_rest import OLD

RESULTS: dict[str, Any] = {
    "JSON": {"id": "ch_1", "amount": [1, 2.5, None, True], "name": "ä"},
    "of Django": [Decimal("1.10"), datetime(2026, 11, 28, 12, 0, tzinfo=UTC), timedelta(days=1)],
    "text": "enc1:no",
}
HEADERS = (("Content-Type", "text/plain"), ("X-Name", 'ä"\\'))
RESULT = "enc1:Vv2dF-mySXIx00Fesm4v0JHIekyGmkt3yeSa7sPXUIN6Lwydfz0Bfg=="
SEALED_HEADERS = (
    "enc1:Zi_FBuRoJt2sd9ry__xWkfCF-c_rS0zjvsXPxw-RydmMPu7x7nYmOvyLM4ocDyGFVQ2u2Bddri5Jpk2xYaSj6kHMqugb"
    + "tAL7n4YoFsNXRnmEj10="
)
SEALED_BODY = b64decode("79LUmjzLk5F/j2AhVtq+AkbzzWlc/zbKtdqLOsuFrVY=")
"""Sealed with `OLD` for the row below, once: the nonce is random."""
VALUE = (
    b'10123456789abcdef0123456789abcdef{"scope": "s", "operation": "POST pay", "key": "abc", "fingerprint": "'
    + b"66" * 32
    + rb'", "resource": ["order", "7"], "status_code": 201, "headers": "[[\"A\",\"b\"]]", "has_body": true}'
    + b"\nbody"
)


def stored() -> Iterator[tuple[str, Any]]:
    from django.test import override_settings

    from django_idempotency.engine.execution.results import encode
    from django_idempotency.engine.protocol.outcomes import Claimed, Snapshot
    from django_idempotency.engine.stores.sealing import seal_response, unseal, unseal_response
    from django_idempotency.engine.stores.values import read_value
    from django_idempotency.models import IdempotencyKey
    from tests.shopapp.models import Order

    order = Order(pk=7)
    order._state.db, order._state.adding = "default", False
    for name, value in (RESULTS | {"row": order}).items():
        yield f"result of a step, {name}", encode(value)
    row = IdempotencyKey(pk=1, key_hash=5, scope_hash=-6, fingerprint=b"f" * 32, status_code=201)
    claim = Claimed(id=1, attempt=1, key_hash=5, scope_hash=-6, fingerprint=b"f" * 32)
    snapshot = Snapshot(status_code=201, headers=HEADERS, body=b"body")
    with override_settings(IDEMPOTENCY={"ENCRYPTION_KEYS": None}):
        yield "headers", seal_response(claim, snapshot)[0]
    with override_settings(IDEMPOTENCY={"ENCRYPTION_KEYS": [OLD]}):
        yield "opened result", unseal(row, "result", RESULT, "charge")
        row.headers, row.body = SEALED_HEADERS, SEALED_BODY
        opened = unseal_response(row, row)
        yield "opened response", [opened.status_code, [list(pair) for pair in opened.headers], str(opened.body)]
    value = read_value(VALUE)
    known = {name: str(getattr(value, name)) for name in ("scope", "operation", "key", "fingerprint", "status")}
    yield "value of a backend", {**known, "body": str(value.body), "headers": value.headers, "code": value.status_code}
