"""kill -9 at every boundary of a request, in every mode; then the client retries, and the books are counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("rest_framework")


from django_idempotency.models import IdempotencyKey
from tests.interrupts.retrying import Retrying, at_every_boundary, knowing, look_into_the_books, serving
from tests.servers import fake_gateway
from tests.shopapp.models import Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
BOTH_WAYS = pytest.mark.parametrize("plain", [False, True], ids=["BEGIN and COMMIT travel along", "each by itself"])


@BOTH_WAYS
@pytest.mark.parametrize("path", ["/plain", "/rest"])
def test_atomic(path: str, plain: bool) -> None:
    """One order for each request, whenever its worker died; nothing stuck, and the retry's answer is the truth."""
    answers: list[Any] = []

    def check(retrying: Retrying) -> None:
        answer = retrying.until_final()
        assert answer.status_code == 201
        assert retrying.send().content == answer.content
        answers.append(answer.json()["id"])

    with serving(plain=plain) as client:
        boundaries = at_every_boundary(client, path, check)
    assert boundaries >= 7  # two around each of three messages: claim, write, result with COMMIT; and the answer
    assert len(set(answers)) == boundaries
    assert set(answers) < set(Order.objects.values_list("pk", flat=True))
    assert Order.objects.count() == boundaries + 1


@BOTH_WAYS
@pytest.mark.parametrize(
    ("path", "gateway_options"),
    [
        pytest.param("/retry", (), id="retry, with a gateway that honours keys"),
        pytest.param("/hold", ("--without-keys",), id="hold, with a gateway that knows no keys"),
    ],
)
def test_leased(path: str, gateway_options: tuple[str, ...], plain: bool) -> None:
    """Three steps: one charge, one order and one mail for each request, in the gateway's books and in ours."""
    keys: list[str] = []
    decided: list[str] = []

    with fake_gateway(*gateway_options) as gateway, serving(plain=plain, **knowing(gateway, gateway)) as client:

        def check(retrying: Retrying) -> None:
            def decide() -> None:
                decided.append(look_into_the_books(gateway, retrying.key))

            answer = retrying.until_final(decide)
            assert answer.status_code == 201
            assert retrying.send().content == answer.content
            keys.append(retrying.key)

        boundaries = at_every_boundary(client, path, check)
        charges = Counter(charge["reference"] for charge in gateway.get("/charges").json()["charges"])
    assert boundaries >= 2 * (1 + 3 + 4 + 3 + 1) + 1  # claim, two calls between two steps, write, completion; answer
    orders = Counter(Order.objects.values_list("reference", flat=True))
    assert {key: (charges[f"charge {key}"], orders[key], charges[f"mail {key}"]) for key in keys} == dict.fromkeys(
        keys, (1, 1, 1)
    )
    assert set(charges.values()) == {1}
    assert (len(keys), IdempotencyKey.objects.exclude(status="completed").count()) == (boundaries, 0)
    # Under "hold" each call has been in doubt, made and not made; under "retry" no person is ever asked.
    assert Counter(decided).keys() == ({"recorded", "released"} if path == "/hold" else set())
