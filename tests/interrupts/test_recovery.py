"""kill -9 of a worker whose client never comes back: the recovery command settles what is left; then the books.

And kill -9 of the recovery command itself, at every boundary.
"""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import httpx
import pytest

pytest.importorskip("rest_framework")

from django.db import transaction

from django_idempotency.engine.protocol.outcomes import Claimed
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.claims import a_claim
from tests.interrupts.retrying import Retrying, at_every_boundary, knowing, recover_to_the_end, serving
from tests.leases import lapse
from tests.servers import fake_gateway
from tests.shopapp.models import Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]
Books = dict[str, tuple[int, int, int]]
ALL, NOTHING = (1, 1, 1), (0, 0, 0)


def books(gateway: httpx.Client, keys: list[str]) -> Books:
    """Of each key: how many charges, orders and mails."""
    charges = Counter(charge["reference"] for charge in gateway.get("/charges").json()["charges"])
    orders = Counter(Order.objects.values_list("reference", flat=True))
    return {key: (charges[f"charge {key}"], orders[key], charges[f"mail {key}"]) for key in keys}


def test_the_client_never_comes_back() -> None:
    """Killed at every boundary under "hold": charged, ordered and mailed once, or nothing of it; and nothing is left.

    A client that comes back later gets the answer that the recovery has stored.
    """
    gone: list[Retrying] = []
    with fake_gateway("--without-keys") as gateway, serving(**knowing(gateway, gateway)) as client:
        boundaries = at_every_boundary(client, "/settled", gone.append)
        lapse()
        recover_to_the_end(client)
        keys = [retrying.key for retrying in gone]
        settled = books(gateway, keys)
        answered = dict(IdempotencyKey.objects.filter(key__in=keys).values_list("key", "status_code"))
        assert {(settled[key], answered.get(key)) for key in keys} == {
            (NOTHING, None),  # killed before its claim was committed
            (NOTHING, 402),
            (ALL, 201),
        }
        for retrying in gone:
            answer = retrying.send()
            assert answer.status_code == answered.get(retrying.key, 201)
            assert answer.headers["Idempotency-Replayed"] == ("true" if retrying.key in answered else "false")
        # Those that came back without a row have run now. Nothing has run twice.
        assert books(gateway, keys) == {key: settled[key] if key in answered else ALL for key in keys}
    assert len(gone) == boundaries


def gone_after_its_charge(gateway: httpx.Client) -> str:
    """The key of a client that is gone, and whose worker has died after its charge, before it could commit that."""
    request = a_claim(operation="POST settled", key=str(uuid4()), lease=60.0)
    store = store_for("default")
    with transaction.atomic():
        claimed = store.claim(request)
    assert isinstance(claimed, Claimed)
    with transaction.atomic():
        store.journal.start_call(claimed, "charge", keyed=False)
    gateway.post("/charges", json={"amount": 1, "reference": f"charge {request.identity.key}"}).raise_for_status()
    lapse()
    return request.identity.key


def test_the_recovery_is_killed() -> None:
    """At every boundary of it: another run ends what it has begun."""
    with fake_gateway("--without-keys") as gateway, serving(**knowing(gateway, gateway)) as client:
        keys = [gone_after_its_charge(gateway)]
        answer = client.post("/recover")
        assert answer.json()["status"] == 0
        boundaries = int(answer.headers["X-Boundaries"])
        for number in range(1, boundaries + 1):
            keys.append(gone_after_its_charge(gateway))
            with pytest.raises(httpx.TransportError):
                client.post("/recover", headers={"X-Kill-At": str(number)})
            lapse()
            recover_to_the_end(client)
        assert books(gateway, keys) == dict.fromkeys(keys, ALL)
    # Claim, record of the charge, order, mail and completion: a boundary on each side of each statement and COMMIT.
    assert boundaries >= 2 * 15
    assert set(IdempotencyKey.objects.values_list("status", "status_code")) == {("completed", 201)}
