"""`late_keys="refuse"`: a key that is older than `ttl`, and whose row is gone, does not run again."""

from __future__ import annotations

import time
from uuid import UUID, uuid4

import pytest

from django_idempotency.engine.protocol.digests import stored_identity
from django_idempotency.models import IdempotencyKey
from tests.claims import expire
from tests.heard import heard
from tests.http import posting_to_a_view, problem
from tests.shopapp.models import Order

pytestmark = pytest.mark.django_db(transaction=True)
TTL = 3600


def made(ago: float) -> str:
    """A UUID of version 7 that was made so many seconds ago."""
    stamp = int((time.time() - ago) * 1000).to_bytes(6, "big")
    random = bytearray(uuid4().bytes[6:])
    random[0] = 0x70 | random[0] & 0x0F
    return str(UUID(bytes=stamp + bytes(random)))


@pytest.mark.parametrize("ago", [TTL + 60, -600])
def test_a_late_key_without_a_row_is_refused(ago: float) -> None:
    """Or a key of the future, whose age nothing can be said about. It is told, and not one row is written."""
    send = posting_to_a_view(late_keys="refuse", ttl=TTL, key=lambda request: made(ago))
    with heard() as told:
        answer = send()
    assert problem(answer)["code"] == "key-too-old"
    assert (answer.status_code, answer.headers["Idempotency-Replayed"]) == (409, "false")
    assert [event["event"] for event in told] == ["too_old"]
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


def test_a_late_retry_is_replayed_as_long_as_its_row_lives() -> None:
    """An expired row is no answer, and is not taken over."""
    key, late = made(0), made(TTL + 60)
    send = posting_to_a_view(late_keys="refuse", ttl=TTL, key=lambda request: key)
    first = send()
    assert (first.status_code, first.headers["Idempotency-Replayed"]) == (200, "false")
    row = IdempotencyKey.objects.get()  # as if it had been claimed under the late key
    of = stored_identity(scope=row.scope, operation=row.operation, key=late)
    IdempotencyKey.objects.update(key=late, key_hash=of.key_hash, scope_hash=of.scope_hash)
    again = posting_to_a_view(late_keys="refuse", ttl=TTL, key=lambda request: late)
    assert again().headers["Idempotency-Replayed"] == "true"
    expire()
    assert problem(again())["code"] == "key-too-old"
    assert (Order.objects.count(), IdempotencyKey.objects.get().attempt) == (1, 1)


@pytest.mark.parametrize("key", ["k", "397c5450-f0c7-4b45-a02c-cb16241222fc"])
def test_another_key_is_no_usable_key(key: str) -> None:
    """Nothing says when it was made."""
    answer = posting_to_a_view(late_keys="refuse", ttl=TTL, key=lambda request: key)()
    assert problem(answer)["code"] == "invalid-key"


def test_a_key_is_not_forgotten_before_it_is_late() -> None:
    """Its client's clock may be five minutes ahead, so its row lives five minutes longer than `ttl`."""
    posting_to_a_view(late_keys="refuse", ttl=TTL, key=lambda request: made(-290))()
    row = IdempotencyKey.objects.get()
    assert (row.expires_at - row.created_at).total_seconds() >= TTL + 300
