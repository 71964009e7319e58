"""What a stored key means for a request that brings the same key. The table reads as the specification does."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from django_idempotency.engine.protocol.digests import identify
from django_idempotency.engine.protocol.outcomes import (
    ClaimRequest,
    Completed,
    Conflicted,
    InDoubt,
    Mismatched,
    Snapshot,
)
from django_idempotency.engine.protocol.stored_key import (
    Doubt,
    Resume,
    Ruling,
    Status,
    StoredKey,
    TakeOver,
    decide,
    resumed,
)
from django_idempotency.models import IdempotencyKey

REPLAY = Completed(snapshot=Snapshot(status_code=201, headers=(("X-A", "b"),), body=b"{}"))
IDENTITIES = ("same", "other")
STATUSES = ("in_progress", "completed", "failed")
EXPIRED = ("living", "expired")
LEASES = ("live", "lapsed", "none")
PAYLOADS = ("same", "other", "not compared")
AXES = (IDENTITIES, STATUSES, EXPIRED, LEASES, PAYLOADS)
Case = tuple[str, ...]

# fmt: off
TABLE: list[tuple[str, str, str, str, str, Ruling]] = [
    # identity  status         row        lease               payload         decision
    ("other",   "any",         "any",     "any",              "any",          Mismatched()),
    ("same",    "any",         "expired", "any",              "any",          TakeOver()),
    ("same",    "in_progress", "living",  "live",             "any",          Conflicted()),
    ("same",    "in_progress", "living",  "lapsed",           "same",         Resume()),
    ("same",    "in_progress", "living",  "lapsed",           "not compared", Resume()),
    ("same",    "in_progress", "living",  "lapsed",           "other",        Mismatched()),
    ("same",    "in_progress", "living",  "none",             "same",         InDoubt()),
    ("same",    "in_progress", "living",  "none",             "not compared", InDoubt()),
    ("same",    "in_progress", "living",  "none",             "other",        Mismatched()),
    ("same",    "failed",      "living",  "any",              "same",         Resume()),
    ("same",    "failed",      "living",  "any",              "not compared", Resume()),
    ("same",    "failed",      "living",  "any",              "other",        Mismatched()),
    ("same",    "completed",   "living",  "any",              "same",         REPLAY),
    ("same",    "completed",   "living",  "any",              "not compared", REPLAY),
    ("same",    "completed",   "living",  "any",              "other",        Mismatched()),
]
# fmt: on


def cases(pattern: tuple[str, ...]) -> list[Case]:
    """Every case that a line of the table stands for."""
    return list(product(*(axis if value == "any" else (value,) for value, axis in zip(pattern, AXES, strict=True))))


EVERY_CASE = [(case, outcome) for *pattern, outcome in TABLE for case in cases(tuple(pattern))]


def request(**changes: Any) -> ClaimRequest:
    identity = identify(scope="user:1", operation="POST orders/", key="abc")
    return ClaimRequest(**{"identity": identity, "fingerprint": b"f" * 32, "ttl": 60, **changes})


def stored(**changes: Any) -> StoredKey:
    values: dict[str, Any] = {
        "id": 7,
        "scope": "user:1",
        "operation": "POST orders/",
        "key": "abc",
        "fingerprint": b"f" * 32,
        "status": Status.COMPLETED,
        "attempt": 3,
        "expired": False,
        "lapsed": False,
        "unleased": False,
        "lease_left": 0.0,
        "status_code": 201,
        "headers": '[["X-A","b"]]',
        "body": b"{}",
        "response": lambda row, identity: REPLAY.snapshot,
    }
    return StoredKey(**{**values, **changes})


def test_the_table_names_each_case_once() -> None:
    """No case is forgotten, and none is decided twice."""
    assert sorted(case for case, _ in EVERY_CASE) == sorted(product(*AXES))


@pytest.mark.parametrize(("case", "outcome"), EVERY_CASE)
def test_the_decision_is_the_tables(case: Case, outcome: Ruling) -> None:
    """Identity, status, expiry, lease and payload together decide."""
    identity, status, row, lease, payload = case
    found = stored(
        scope="user:1" if identity == "same" else "user:2",
        status=Status(status),
        expired=row == "expired",
        lapsed=lease == "lapsed",
        unleased=(status, lease) == ("in_progress", "none"),
    )
    sent = {"same": b"f" * 32, "other": b"g" * 32, "not compared": None}[payload]
    assert decide(found, request(fingerprint=sent)) == outcome


def test_a_row_without_a_fingerprint_matches_every_payload() -> None:
    """The first request compared nothing, so later ones cannot."""
    assert decide(stored(fingerprint=None), request()) == REPLAY


def test_a_refusal_says_what_the_row_says() -> None:
    """What the operation is about, when to come back, and which attempt's doubt it is."""
    order = ("order", "7")
    running = stored(status=Status.IN_PROGRESS, lease_left=20.0, resource=order)
    conflict, doubt = (decide(replace(running, unleased=unleased), request()) for unleased in (False, True))
    assert isinstance(conflict, Conflicted)
    assert (conflict.lease_left, conflict.resource) == (20.0, order)
    assert isinstance(doubt, InDoubt)
    assert (doubt.attempt, doubt.resource) == (3, order)


@pytest.mark.parametrize(("policy", "unkeyed"), [("retry-keyed", ("charge",)), ("hold", ())])
def test_only_calls_of_retry_keyed_could_be_repeated_with_their_key(policy: Any, unkeyed: tuple[str, ...]) -> None:
    """Neither a write, nor a call that the project holds."""
    doubts = [Doubt("charge", True, False), Doubt("order", False, False)]
    held = resumed(stored(status=Status.FAILED, resource=("order", "7")), request(policy=policy), doubts)
    assert isinstance(held, InDoubt)
    assert (held.attempt, held.resource, held.unkeyed) == (3, ("order", "7"), unkeyed)


def test_the_model_has_the_same_states() -> None:
    """The rules do not import the model, so the words stand in two places."""
    assert [status.value for status in Status] == IdempotencyKey.Status.values


# --- when a duplicate of a running request should come back


@pytest.mark.parametrize(
    ("lease_left", "seconds"),
    [(0, 1), (-1e9, 1), (0.2, 1), (1.1, 2), (29.5, 30), (60, 60), (60.1, 60), (86400 * 365, 60)],
)
def test_a_retry_comes_when_the_lease_is_over(lease_left: float, seconds: int) -> None:
    """Rounded up, so that no retry comes a moment too early; 1 to 60 seconds."""
    assert Conflicted(lease_left=lease_left).retry_after == seconds


def test_without_a_lease_it_comes_soon() -> None:
    """An atomic request ends with its transaction."""
    assert Conflicted().retry_after == 1
