"""kill -9 of a worker at every boundary of the work, then the retry."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

pytest.importorskip("rest_framework")

from tests.servers import DEADLINE, eventually, gunicorn, holding
from tests.shopapp.models import Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with gunicorn("--workers", "2") as url, httpx.Client(base_url=url, timeout=DEADLINE) as client:
        yield client


@pytest.mark.parametrize("path", ["/plain", "/rest"])
@pytest.mark.parametrize(("place", "orders_left"), [("before the write", 0), ("before COMMIT", 0), ("after COMMIT", 1)])
def test_a_killed_worker_leaves_all_or_nothing(
    client: httpx.Client, key: str, path: str, place: str, orders_left: int
) -> None:
    """The client hears nothing; its retry ends with one order, first-hand or replayed."""
    headers = {"Idempotency-Key": key}
    with ThreadPoolExecutor(1) as pool, holding() as worker:
        lost = pool.submit(client.post, path, json={"a": 1}, headers={**headers, "X-Pause": place})
        os.kill(worker(), signal.SIGKILL)
        assert isinstance(lost.exception(DEADLINE), httpx.TransportError)

    def retry() -> httpx.Response | None:
        answer = client.post(path, json={"a": 1}, headers=headers)
        # The dead worker's transaction lives until PostgreSQL notices: until then the key is in flight.
        return None if answer.status_code == 409 else answer

    answer: httpx.Response = eventually("a final answer", retry)
    assert answer.status_code == 201
    assert answer.headers["Idempotency-Replayed"] == ("true" if orders_left else "false")
    assert Order.objects.count() == 1
    assert Order.objects.get().pk == answer.json()["id"]
