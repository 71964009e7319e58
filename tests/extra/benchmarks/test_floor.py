"""The floor of the benchmark keeps the promise that it is compared with."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import RequestFactory

from tests.shopapp.models import Order
from tests.tap import tapped

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
BODY = {"item": "tea", "quantity": 3}


def test_the_floor_takes_the_round_trips_of_the_package_and_replays(rf: RequestFactory) -> None:
    """One order for a key, the same bytes for its retry, and no answer for another body."""
    from tests.extra.benchmarks.floor import build, floor  # its model of a hand-made key is no test's
    from tests.extra.benchmarks.views import protected

    def send(view: Any, key: str, body: Any = None) -> Any:
        headers = {"Idempotency-Key": key}
        return view(rf.post("/orders/", json.dumps(body or BODY), content_type="application/json", headers=headers))

    build()
    try:
        with tapped() as tap:
            trips = []
            for view in (floor, protected):
                for _ in range(3):
                    send(view, str(uuid4()))
                tap.take()
                key = str(uuid4())
                first, taken = send(view, key), len(tap.take())
                again = send(view, key)
                trips.append((taken, len(tap.take())))
                assert (again.status_code, again.content) == (first.status_code, first.content)
            assert trips == [(3, 2)] * 2
            assert Order.objects.count() == 8
            key = str(uuid4())
            send(floor, key)
            with pytest.raises(AssertionError):
                send(floor, key, {"item": "tea", "quantity": 4})
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE floor_key")
