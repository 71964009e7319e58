"""kill -9 at every boundary of a request, in every mode; then the client retries, and the books are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

pytest.importorskip("rest_framework")


from django_idempotency.models import IdempotencyKey
from tests.interrupts.retrying import Retrying, at_every_boundary, knowing, look_into_the_books, serving
from tests.servers import fake_gateway
from tests.shopapp.models import Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]

KEPT, NEW, BY_ITSELF = "on a kept connection", "on a new connection", "each by itself"
"""Where BEGIN and COMMIT travel along; where the COMMIT of a leased claim does not; and where each goes by itself."""


@dataclass
class Shop:
    """A server and its gateways: one that honours keys, and one for /hold that knows none."""

    way: str
    client: httpx.Client
    gateway: httpx.Client
    old_gateway: httpx.Client


@pytest.fixture(scope="module")
def shop(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[Shop]:
    with (
        django_db_blocker.unblock(),
        fake_gateway() as gateway,
        fake_gateway("--without-keys") as old_gateway,
        serving(
            plain=request.param == BY_ITSELF,
            SERVER_CONN_MAX_AGE="0" if request.param == NEW else "600",
            **knowing(gateway, old_gateway),
        ) as client,
    ):
        yield Shop(request.param, client, gateway, old_gateway)


def each_way(*cases: tuple[str, str]) -> pytest.MarkDecorator:
    ids = [f"{path}, {way}" for way, path in cases]
    return pytest.mark.parametrize(("shop", "path"), cases, indirect=["shop"], ids=ids)


@each_way((KEPT, "/plain"), (NEW, "/plain"), (NEW, "/rest"), (BY_ITSELF, "/plain"))
def test_atomic(shop: Shop, path: str) -> None:
    """One order for each request, whenever its worker died; nothing stuck, and the retry's answer is the truth."""
    answers: list[Any] = []

    def check(retrying: Retrying) -> None:
        answer = retrying.until_final()
        assert answer.status_code == 201
        assert retrying.send().content == answer.content
        answers.append(answer.json()["id"])

    boundaries = at_every_boundary(shop.client, path, check)
    assert boundaries >= 7  # two around each of three messages: claim, write, result with COMMIT; and the answer
    assert len(set(answers)) == boundaries
    assert set(answers) < set(Order.objects.values_list("pk", flat=True))
    assert Order.objects.count() == boundaries + 1


@each_way((KEPT, "/retry"), (KEPT, "/hold"), (NEW, "/hold"), (BY_ITSELF, "/hold"))
def test_leased(shop: Shop, path: str) -> None:
    """Three steps: one charge, one order and one mail for each request, in the gateway's books and in ours."""
    keys: list[str] = []
    decided: list[str] = []
    gateway = shop.old_gateway if path == "/hold" else shop.gateway

    def check(retrying: Retrying) -> None:
        def decide() -> None:
            decided.append(look_into_the_books(gateway, retrying.key))

        answer = retrying.until_final(decide)
        assert answer.status_code == 201
        assert retrying.send().content == answer.content
        keys.append(retrying.key)

    boundaries = at_every_boundary(shop.client, path, check)
    charges = Counter(charge["reference"] for charge in gateway.get("/charges").json()["charges"])
    # Two around each message: of the claim, two calls, a write with its order, and the completion. Two around each call
    # of the gateway; and the answer. A new connection takes three messages, and commits its first claim by itself.
    messages = {KEPT: 1 + 2 * 2 + 3 + 1, NEW: 3 + 2 + 2 * 2 + 3 + 1, BY_ITSELF: 3 + 2 * 8 + 7 + 3}[shop.way]
    assert boundaries == 2 * messages + 2 * 2 + 1
    orders = Counter(Order.objects.values_list("reference", flat=True))
    assert {key: (charges[f"charge {key}"], orders[key], charges[f"mail {key}"]) for key in keys} == dict.fromkeys(
        keys, (1, 1, 1)
    )
    assert set(charges.values()) == {1}
    assert (len(keys), IdempotencyKey.objects.exclude(status="completed").count()) == (boundaries, 0)
    # Under "hold" each call has been in doubt, made and not made; under "retry" no person is ever asked.
    assert Counter(decided).keys() == ({"recorded", "released"} if path == "/hold" else set())
