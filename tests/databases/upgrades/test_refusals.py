"""What this release refuses, met by keys of 0.4.0: how many orders and charges come of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import pytest
from django.test import Client

pytest.importorskip("rest_framework")

from django_idempotency.models import IdempotencyKey
from tests.callers.identity_urls import jwt
from tests.databases.upgrades.releases import Release
from tests.shopapp.models import Order

URLS = "tests.databases.upgrades.refused"
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(URLS), pytest.mark.timeout(300)]
FAILS = "X-Fail"


@dataclass(frozen=True, kw_only=True)
class Case:
    path: str
    first: dict[str, str] = field(default_factory=dict)
    """Headers of the first request, which 0.4.0 gets."""
    always: dict[str, str] = field(default_factory=dict)
    newer: str = ""
    retries: list[int]
    """The statuses of the retries, which this release gets."""
    says: str
    """What the last of them is told, or the log, or whoever looks at the key."""
    books: dict[str, int]


JWT = {"Authorization": f"Bearer {jwt(sub='17', iss='shops')}"}
NO_NEW_CALL = "would make a new call"
CASES = {
    "a stream that 0.4.0 has completed": Case(
        path="stream", retries=[409, 409], says="response-not-stored", books={"order": 1}
    ),
    "a stream that has failed": Case(
        path="stream", first={FAILS: "after the order"}, retries=[500, 500], says="store_body=False", books={}
    ),
    "a leased stream that was half done": Case(
        path="leased-stream",
        first={FAILS: "after the charge"},
        retries=[500, 500],
        says="store_body=False",
        books={"charge": 1, "order": 1},
    ),
    "a new call before a finished one": Case(
        path="new-call",
        first={FAILS: "after the charge"},
        newer="before",
        retries=[500, 500],
        says=NO_NEW_CALL,
        books={"charge": 1},
    ),
    "a new call after a finished one": Case(
        path="new-call",
        first={FAILS: "after the charge"},
        newer="after",
        retries=[201, 201],
        says="",
        books={"charge": 1, "check": 1, "order": 1},
    ),
    "call in an async view": Case(
        path="in-async", first={FAILS: "before the charge"}, retries=[500, 500], says="acall", books={}
    ),
    "a reconcile that leaves a doubt": Case(
        path="two-doubts",
        first={FAILS: "in the charge"},
        retries=[201, 201],
        says="whether fee took effect",
        books={"charge": 2},
    ),
    "a user in no table": Case(
        path="stranger", always=JWT, retries=[403, 403], says="unidentified-caller", books={"order": 1}
    ),
    "an empty primary key": Case(path="nobody", retries=[500, 500], says="primary key", books={"order": 1}),
}


@pytest.fixture
def old(release_0_4_0: Release) -> Iterator[httpx.Client]:
    with Release(release_0_4_0.folder, {"SHOP_URLS": URLS}).serving(1) as client:
        yield client


def test_one_order(old: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A refused retry makes no second order and no second charge, and says what to do."""
    for name, case in CASES.items():
        key = str(uuid4())
        headers = {"Idempotency-Key": key, **case.always}
        first = old.post(f"/{case.path}", json={"a": 1}, headers=headers | case.first).status_code
        assert first == (500 if case.first else 201), name
        monkeypatch.setenv("NEWER", case.newer)
        client = Client(raise_request_exception=False)
        told: list[Any] = []
        caplog.clear()
        statuses = []
        for _ in case.retries:
            answer = client.post(f"/{case.path}", {"a": 1}, content_type="application/json", headers=headers)
            statuses.append(answer.status_code)
            told = [*(b"" if answer.streaming else answer.content).decode().splitlines(), caplog.text]
        counted = {of: Order.objects.filter(reference=f"{of} {key}").count() for of in ("order", "charge", "check")}
        told += IdempotencyKey.objects.filter(key=key).exclude(last_error=None).values_list("last_error", flat=True)
        assert (name, statuses, {of: n for of, n in counted.items() if n}) == (name, case.retries, case.books), told
        assert case.says in "\n".join(told), name
    assert os.environ["NEWER"] == ""
