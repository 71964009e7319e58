"""kill -9 of a leased request at every boundary, and the client never comes back: what was charged is still seen."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

pytest.importorskip("rest_framework")

from django.db import connection
from django.db.models import F

from django_idempotency.maintenance import cleanup_idempotency_keys, half_done, in_doubt, needs_attention
from django_idempotency.models import IdempotencyKey
from tests.interrupts.retrying import at_every_boundary, knowing, serving
from tests.leases import lapse
from tests.servers import eventually, fake_gateway

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]


def nothing_is_locked() -> bool:
    """PostgreSQL has noticed that the workers are dead, and has ended their transactions."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND (state <> 'idle') AND backend_type = 'client backend'"
        )
        return bool(cursor.fetchone() == (0,))


def test_a_charge_whose_client_never_comes_back_is_seen_for_ever() -> None:
    """Each key with a charge in the gateway's books needs attention, also long after `ttl`; the others do not."""
    with fake_gateway() as gateway, serving(**knowing(gateway, gateway)) as client:
        keys: list[str] = []
        at_every_boundary(client, "/retry", lambda retrying: keys.append(retrying.key))
        eventually("the end of the dead workers' transactions", nothing_is_locked)
        references = [charge["reference"] for charge in gateway.get("/charges").json()["charges"]]
    completed = set(IdempotencyKey.objects.filter(status="completed").values_list("key", flat=True))
    charged = {reference.removeprefix("charge ") for reference in references if reference.startswith("charge ")}
    assert max(Counter(references).values()) == 1
    lapse()
    IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(days=365))
    cleanup = cleanup_idempotency_keys()
    open_keys = set(needs_attention().values_list("key", flat=True))
    assert charged & set(keys) - completed <= open_keys
    assert open_keys == {*half_done().values_list("key", flat=True), *in_doubt().values_list("key", flat=True)}
    assert (half_done().count() > 1, in_doubt().count() > 1, cleanup.unstuck > 1) == (True, True, True)
    IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(days=365))
    cleanup_idempotency_keys()
    assert set(IdempotencyKey.objects.values_list("key", flat=True)) == open_keys
