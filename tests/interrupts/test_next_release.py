"""This release and the next one behind one table, each in processes of its own, while clients send to both."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import httpx
import pytest

pytest.importorskip("rest_framework")

from tests.servers import DEADLINE, gunicorn
from tests.shopapp.models import Ledger, Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
KEYS, AT_ONCE = 12, 12


@pytest.mark.parametrize("path", ["/plain", "/rest", "/leased"])
def test_two_releases_make_one_order(path: str) -> None:
    """Each key is sent to both, 12 times at once. A stored request of the next release is refused by this one."""
    two = ("--workers", "3")
    with (
        gunicorn(*two) as old,
        gunicorn(*two, application="tests.server.next_wsgi") as new,
        httpx.Client(timeout=DEADLINE) as client,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):

        def send(url: str, key: str) -> tuple[int, str]:
            answer = client.post(f"{url}{path}", json={"a": 1}, headers={"Idempotency-Key": key})
            return answer.status_code, answer.headers.get("Idempotency-Replayed", "")

        met: Counter[tuple[str, int, str]] = Counter()
        for _ in range(KEYS):
            key = str(uuid4())
            releases = [("this", old), ("next", new)] * (AT_ONCE // 2)
            answers = pool.map(lambda of, key=key: (of[0], *send(of[1], key)), releases)
            met.update(answers)
            assert send(new, key) == (201, "true")
    ran, replay, running, used = (201, "false"), (201, "true"), (409, "false"), (422, "false")
    assert {answer[1:] for answer in met if answer[0] == "next"} <= {ran, replay, running}
    assert {answer[1:] for answer in met if answer[0] == "this"} <= {ran, replay, running, used}
    assert sum(count for answer, count in met.items() if answer[1:] == ran) == KEYS
    assert (Order.objects.count(), Ledger.objects.count()) == (KEYS, KEYS if path == "/leased" else 0)
