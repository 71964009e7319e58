"""`payload=` of `run_once`: which payloads are the same?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from django_idempotency import PayloadMismatch, run_once
from django_idempotency.models import IdempotencyKey
from tests.works import RUNS, place

pytestmark = pytest.mark.django_db
BERLIN = timezone(timedelta(hours=1))
NOON = datetime(2026, 11, 22, 12, 0, 0)


@pytest.mark.parametrize("payloads", [({"a": 1}, {"a": 2}), (b"1", b"2"), ([1], ["1"]), ("1", b"1")])
def test_another_payload_is_a_named_exception(payloads: tuple[Any, Any]) -> None:
    """The key was mixed up; nothing runs. No payload is compared with none."""
    run_once(place, scope="s", key="k", payload=payloads[0])
    with pytest.raises(PayloadMismatch, match=r"tests\.works\.place with key 'k' was used for another payload"):
        run_once(place, scope="s", key="k", payload=payloads[1])
    assert run_once(place, scope="s", key="k", payload=payloads[0]).replayed is True
    assert run_once(place, scope="s", key="k").replayed is True
    assert len(RUNS) == 1


@pytest.mark.parametrize(
    ("payload", "fingerprint"),
    [
        ({"b": [1, "ä"], "a": Decimal("1.10")}, "cba8bd3019cf1ed9d57098ec64443786b859c68b13abc15496d9e3fe23e111af"),
        (
            {"at": NOON.replace(microsecond=123_000, tzinfo=UTC)},
            "10195b9d565115a3fe0f567587b732efbc38afd4553e6e3bb0cf264f4f565feb",
        ),
        (b"bytes", "4fe7aa7b3446d27644ddcb6096ef24efc8b9f19431a9f53b73ad265b5fb59cf4"),
    ],
)
def test_the_fingerprint_stays_the_same_from_release_to_release(payload: Any, fingerprint: str) -> None:
    """A retry across an upgrade must not be refused."""
    run_once(place, scope="s", key="k", payload=payload)
    assert bytes(IdempotencyKey.objects.get().fingerprint).hex() == fingerprint


@pytest.mark.parametrize(
    ("payload", "fingerprint"),
    [
        ({"b": [1, "ä"], "a": Decimal("1.10")}, "4e684364fad3ff23bfa66980aa869dd36cac95dcca7e966828e7c22fe60a752b"),
        ({"at": NOON.replace(tzinfo=BERLIN)}, "c90c26ca413e17359f207eee413a6f62af09ae3692b6822f4c1ebe8038b043fc"),
        ({"a": 10.0}, "a2192ee9476e562701c14c59fb3cac7d64aeec4ed0d6c41ea17976b44edd328c"),
    ],
)
def test_a_key_stored_by_the_earlier_version_is_replayed(payload: Any, fingerprint: str) -> None:
    """0.4.0 compared Decimals, moments and floats as they were written."""
    run_once(place, scope="s", key="k", payload=payload)
    IdempotencyKey.objects.update(fingerprint=bytes.fromhex(fingerprint))
    assert run_once(place, scope="s", key="k", payload=payload).replayed is True
    with pytest.raises(PayloadMismatch):
        run_once(place, scope="s", key="k", payload={"at": NOON})


@pytest.mark.parametrize(
    "equal",
    [
        (Decimal(10), Decimal("10.00"), Decimal("1E+1")),
        (10, 10.0),
        (NOON.replace(tzinfo=BERLIN), NOON.replace(tzinfo=BERLIN).astimezone(UTC)),
        (datetime.max.replace(tzinfo=BERLIN), datetime.max.replace(tzinfo=BERLIN)),
        (Decimal("NaN"), Decimal("NaN")),
    ],
    ids=lambda equal: str(equal[0]),
)
def test_payloads_are_compared_by_value(equal: tuple[Any, ...]) -> None:
    """A task is queued with the values of a form, and delivered again with those of the database."""
    found = [run_once(place, scope="s", key="k", payload={"list": [{"a": value}]}) for value in equal]
    assert [result.replayed for result in found] == [False, *[True] * (len(equal) - 1)]
    with pytest.raises(PayloadMismatch):
        run_once(place, scope="s", key="k", payload={"list": [{"a": 9}]})


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (Decimal("1.000000000000000000000000000000000001"), Decimal("1.000000000000000000000000000000000002")),
        (NOON, NOON.replace(tzinfo=UTC)),
        (1, True),
        (1, "1"),
    ],
)
def test_payloads_of_other_values_are_two(one: Any, two: Any) -> None:
    """A context of `decimal` would round, and a moment without a zone is none."""
    run_once(place, scope="s", key="k", payload={"a": one})
    with pytest.raises(PayloadMismatch):
        run_once(place, scope="s", key="k", payload={"a": two})


@pytest.mark.parametrize("cut", [NOON, NOON.replace(tzinfo=UTC), NOON.time()])
def test_payloads_that_differ_by_a_microsecond_are_two(cut: Any) -> None:
    """Django's encoder cuts times to milliseconds."""
    run_once(place, scope="s", key="k", payload={"at": cut.replace(microsecond=123_456)})
    assert run_once(place, scope="s", key="k", payload={"at": cut.replace(microsecond=123_456)}).replayed is True
    with pytest.raises(PayloadMismatch):
        run_once(place, scope="s", key="k", payload={"at": cut.replace(microsecond=123_457)})
