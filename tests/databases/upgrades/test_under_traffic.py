"""0.4.0 is replaced by this release while customers order, with keys in each state; then the books are counted.

Short here. More customers' orders, and both releases behind one pooler: `UPGRADES=20 tox run -e upgrades`.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("rest_framework")

from django.db import connection
from django.utils import timezone

from django_idempotency.models import IdempotencyKey
from tests.at_rest import OLD as ENCRYPTION_KEY
from tests.databases.upgrades.releases import (
    Answer,
    Order,
    Release,
    die_of,
    folder_of_this_release,
    succeed,
)
from tests.leases import lapse
from tests.pooler import PGBOUNCER, pgbouncer
from tests.servers import eventually, fake_gateway
from tests.shopapp import models as books
from tests.step_rows import miscounted

LONGER = int(os.environ.get("UPGRADES", "1"))
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300 * LONGER)]
CUSTOMERS = 2
PATHS = ("plain", "rest", "tombstone", "named", "keyed", "held", "jobs/atomic", "jobs/leased")
THREE_STEPS = {"keyed", "held", "unkeyed", "repeated", "accepted", "settled", "jobs/leased"}
FAILS, DIES = "X-Fail", "X-Die"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A key in some state: how one release makes it, and what a retry gets from the other one."""

    path: str
    first: dict[str, str] = field(default_factory=dict)
    """Headers of the first request: where it fails or its worker dies."""
    decided: str = ""
    """What a person decides before the other release meets the key."""
    unknown: str = ""
    """What a person decides after the other release has answered that the outcome is unknown."""
    replayed: bool = False
    """Whether the first retry is a replay."""
    status: int = 201
    orders: int = 1
    charges: int | None = None
    """Default: one, with a mail, if the path has steps."""
    expired: bool = False
    body: bytes = b'{"a": 1, "of": ["\xc3\xbc", 10.5, null]}'


CASES = {
    "completed": Case(path="plain", replayed=True),
    "completed, REST framework": Case(path="rest", replayed=True),
    "completed, named": Case(path="named", replayed=True),
    "completed, leased": Case(path="keyed", replayed=True),
    "completed job": Case(path="jobs/atomic", replayed=True),
    "completed leased job": Case(path="jobs/leased", replayed=True),
    "completed, with numbers": Case(path="plain", body=b'{"a": 1.50, "of": 1e2}', replayed=True),
    "tombstone": Case(path="tombstone", replayed=True, status=409),
    "tombstone of a long response": Case(path="long", replayed=True, status=409),
    "failed, nothing was done": Case(path="keyed", first={FAILS: "before the charge"}),
    "failed, atomic": Case(path="plain", first={FAILS: "after the order"}),
    "failed, half done": Case(path="keyed", first={FAILS: "after the charge"}),
    "failed, all but the mail": Case(path="keyed", first={FAILS: "before the mail"}),
    "failed job, half done": Case(path="jobs/leased", first={FAILS: "after the charge"}),
    "failed, the write rolled back": Case(path="held", first={FAILS: "after the order"}),
    "in doubt, with its derived key": Case(path="keyed", first={FAILS: "in the charge"}),
    "in doubt, to be repeated": Case(path="repeated", first={FAILS: "in the charge"}),
    "held, charged": Case(path="held", first={FAILS: "in the charge"}, unknown="record"),
    "held, not charged": Case(path="held", first={FAILS: "before the gateway"}, unknown="release"),
    "held, refunded": Case(
        path="held", first={FAILS: "in the charge"}, unknown="close", status=402, orders=0, charges=1
    ),
    "held without a derived key": Case(path="unkeyed", first={FAILS: "in the charge"}, unknown="record"),
    "recorded by a person": Case(path="held", first={FAILS: "in the charge"}, decided="record"),
    "released by a person": Case(path="held", first={FAILS: "before the gateway"}, decided="release"),
    "closed by a person": Case(
        path="held",
        first={FAILS: "in the charge"},
        decided="close",
        status=402,
        orders=0,
        charges=1,
        replayed=True,
    ),
    "killed before the COMMIT": Case(path="plain", first={DIES: "after the order"}),
    "abandoned": Case(path="keyed", first={DIES: "before the charge"}),
    "abandoned, half done": Case(path="keyed", first={DIES: "after the charge"}),
    "abandoned, all but the mail": Case(path="held", first={DIES: "before the mail"}),
    "abandoned in the write": Case(path="keyed", first={DIES: "after the order"}),
    "abandoned, charged, with its derived key": Case(path="keyed", first={DIES: "in the charge"}),
    "abandoned, charged, held": Case(path="held", first={DIES: "in the charge"}, unknown="record"),
    "abandoned, not charged, held": Case(path="held", first={DIES: "before the gateway"}, unknown="release"),
    "abandoned, charged, asked": Case(path="settled", first={DIES: "in the charge"}),
    "abandoned, not charged, asked": Case(
        path="settled", first={DIES: "before the gateway"}, status=402, orders=0, charges=0
    ),
    "expired": Case(path="plain", expired=True, orders=2),
    "expired, held": Case(path="held", first={FAILS: "in the charge"}, unknown="record", expired=True),
    "expired, half done": Case(path="keyed", first={FAILS: "after the charge"}, expired=True),
}


KILLED = 2 * sum(DIES in case.first for case in CASES.values()) + 2
"""Workers in both ways, and two `migrate`."""


class Traffic:
    """Customers who send each order to every release at once, and again when it is done."""

    def __init__(self) -> None:
        self.releases: list[httpx.Client] = []
        self.done: list[tuple[Order, Answer]] = []
        self.over = False
        self._wanted = threading.Semaphore(0)

    def order_more(self, orders: int = 1) -> None:
        """A busy machine has less traffic, and takes no longer."""
        self._wanted.release(orders * LONGER)

    def customer(self, number: int) -> None:
        chance = random.Random(number)
        while self._wanted.acquire() and not self.over:
            order, releases = Order(chance.choice(PATHS)), list(self.releases)
            with ThreadPoolExecutor(2) as pool:
                answers = list(pool.map(order.until_final, (releases[0], releases[-1])))
            (first,) = (answer for answer in answers if not answer.replayed)
            (again,) = (answer for answer in answers if answer.replayed)
            assert first.status == 201, first
            expected = (409, again.content) if order.path == "tombstone" else (201, first.content)
            assert (again.status, again.content) == expected, again
            self.done.append((order, again))

    @contextmanager
    def running(self, *releases: httpx.Client) -> Iterator[None]:
        self.releases = list(releases)
        with ThreadPoolExecutor(CUSTOMERS) as pool:
            customers = [pool.submit(self.customer, number) for number in range(CUSTOMERS)]
            try:
                yield
            finally:
                self.over = True
                self.order_more(CUSTOMERS)
        for customer in customers:
            customer.result()


def make(case: Case, release: httpx.Client, traffic: Traffic) -> Order:
    order = Order(case.path, body=case.body)
    traffic.order_more()
    if DIES in case.first:
        with pytest.raises(httpx.TransportError):
            order.send(release, **case.first)
        lapse(key=order.key)
    elif case.first:
        assert order.send(release, **case.first).status == 500
    else:
        answer = order.until_final(release)
        assert (answer.status, answer.replayed) == (201, False), answer
    if case.decided:
        order.decide(release, case.decided)
    if case.expired:
        past = timezone.now() - timedelta(days=1)
        assert IdempotencyKey.objects.filter(key=order.key).update(expires_at=past) == 1
    return order


def meet(case: Case, order: Order, there: httpx.Client, back: httpx.Client) -> Answer:
    """The other release meets the key; then each gives the same answer to retries, and refuses another body."""
    answer = order.until_final(there)
    if case.unknown:
        assert (answer.status, answer.code) == (409, "outcome-unknown"), answer
        assert order.until_final(back).code == "outcome-unknown"
        order.decide(there, case.unknown)
        answer = order.until_final(back)
    replayed = case.replayed or case.unknown == "close"
    assert (answer.status, answer.replayed) == (case.status, replayed), answer
    for release in (there, back, there):
        again = order.until_final(release)
        assert (again.status, again.replayed) == (case.status, True), again
        if case.status != 409:
            assert again.content == answer.content
        other = order.send(release, b'{"a": 2}')
        assert (other.status, other.code) == (422, "already-used"), other
    return answer


def assert_once(gateway: httpx.Client, *expected: tuple[Order, int, int, int]) -> None:
    """The orders, charges and mails of each request, and no others."""
    orders = Counter(books.Order.objects.values_list("reference", flat=True))
    charges = Counter(charge["reference"] for charge in gateway.get("/charges").json()["charges"])
    for order, *numbers in expected:
        counted = [orders.pop(order.key, 0), charges.pop(f"charge {order.key}", 0), charges.pop(f"mail {order.key}", 0)]
        assert counted == numbers, order.path
    assert (orders, charges) == ({}, {})


def effects(order: Order, case: Case | None = None) -> tuple[Order, int, int, int]:
    case = case or Case(path=order.path)
    steps = int(order.path in THREE_STEPS)
    return order, case.orders, steps if case.charges is None else case.charges, steps if case.charges is None else 0


PAUSED = {
    "keyed": "after the charge",
    "held": "in the charge",
    "accepted": "after the charge",
    "jobs/leased": "before the mail",
}
"""Where a worker of 0.4.0 is while the other release gets a retry."""


class Paused:
    """A request whose worker waits in the middle, and meanwhile its retries."""

    def __init__(self, folder: Path, path: str, place: str, at: httpx.Client) -> None:
        self.order, self.at = Order(path), at
        self.mark = folder / self.order.key
        self.pool = ThreadPoolExecutor(1)
        self.first = self.pool.submit(self.order.send, at, **{"X-Pause": place})
        eventually("a worker at its pause", lambda: self.mark.exists() or self.first.done())
        assert not self.first.done(), self.first.result()

    def goes_on(self) -> Answer:
        self.mark.unlink()
        answer = self.first.result()
        self.pool.shutdown()
        assert (answer.status, answer.replayed) == (201, False), answer
        return answer

    def is_met_by(self, release: httpx.Client) -> None:
        """A conflict as long as the first worker is at it, and afterwards its response."""
        answer = self.order.send(release)
        if self.order.path == "accepted":
            assert answer.status == 202
        else:
            assert (answer.status, answer.code) == (409, "in-progress"), answer


def meets_in_progress(paused: list[Paused], there: httpx.Client, back: httpx.Client) -> list[Order]:
    for request in paused:
        request.is_met_by(back)
        request.is_met_by(there)
    for request in paused:
        first = request.goes_on()
        for release in (back, there):
            again = request.order.until_final(release)
            assert (again.replayed, again.status, again.content) == (True, first.status, first.content)
    return [request.order for request in paused]


def meets_an_open_transaction(folder: Path, there: httpx.Client, back: httpx.Client) -> Order:
    paused = Paused(folder, "plain", "after the order", there)
    with ThreadPoolExecutor(1) as pool:
        if connection.vendor == "sqlite":  # its transaction is the only one: the retry waits
            retry = pool.submit(paused.order.until_final, back)
            first = paused.goes_on()
        else:
            paused.is_met_by(back)
            first = paused.goes_on()
            retry = pool.submit(paused.order.until_final, back)
        assert (retry.result().replayed, retry.result().content) == (True, first.content)
    return paused.order


@pytest.mark.parametrize(
    ("sealed", "pooled"),
    [
        pytest.param(False, False, id="plain"),
        pytest.param(True, False, id="sealed"),
        pytest.param(False, True, id="behind one pooler", marks=pytest.mark.only_on("postgresql")),
    ],
)
def test_keys_in_each_state(
    release_0_4_0: Release, tmp_path: Path, sealed: bool, pooled: bool, record_property: Any
) -> None:
    """One order for each key, one charge for each call, whichever release has begun, and whichever goes on."""
    if pooled and (LONGER == 1 or PGBOUNCER is None):
        pytest.skip("for the long run, with an installed pgbouncer: UPGRADES=20 tox run -e upgrades")
    folder = tmp_path / "paused"
    folder.mkdir()
    conf = {"ENCRYPTION_KEYS": [ENCRYPTION_KEY]} if sealed else {}
    through: Any = pgbouncer(12) if pooled else nullcontext({})
    with fake_gateway() as gateway, through as way, ExitStack() as newer, ExitStack() as customers:
        shop = {
            **way,
            "SHOP_IDEMPOTENCY": json.dumps(conf),
            "SHOP_FOLDER": str(folder),
            "GATEWAY": str(gateway.base_url).rstrip("/"),
        }
        before, after = Release(release_0_4_0.folder, shop), Release(folder_of_this_release(), shop)
        traffic = Traffic()
        with before.serving() as old:
            customers.enter_context(traffic.running(old))
            made = {name: make(case, old, traffic) for name, case in CASES.items()}
            paused = [Paused(folder, path, place, old) for path, place in PAUSED.items()]
            traffic.order_more(12)
            for moment in ("pre_migrate", "post_migrate"):
                die_of(after.manage("migrate", DIE_AT=moment))
            traffic.order_more(12)
            succeed(after.manage("migrate"))
            succeed(after.manage("check", "--database", "default"))
            new = newer.enter_context(after.serving())
            traffic.releases = [old, new]
            in_progress = meets_in_progress(paused, old, new)
            answers = {name: meet(CASES[name], order, new, old) for name, order in made.items()}
            back = {name: make(case, new, traffic) for name, case in CASES.items()}
            assert back["completed, with numbers"].send(old).code == "already-used"  # 0.4.0 compares them as texts
            for name in back.keys() - {"completed, with numbers"}:
                meet(CASES[name], back[name], old, new)
            traffic.releases = [new]
            traffic.order_more(6)
            customers.close()
            in_progress += [meets_an_open_transaction(folder, *way) for way in ((old, new), (new, old))]
        # The previous release is gone.
        for order, answer in traffic.done:
            again = order.until_final(new)
            assert (again.status, again.code, again.replayed) == (answer.status, answer.code, True)
            assert again.code or again.content == answer.content
        for name, answer in answers.items():
            again = made[name].until_final(new)
            assert (again.status, again.replayed) == (answer.status, True)
        expected = [effects(made[name], case) for name, case in CASES.items()]
        expected += [effects(back[name], case) for name, case in CASES.items()]
        expected += [effects(order) for order in in_progress] + [effects(order) for order, _ in traffic.done]
        assert_once(gateway, *expected)
    record_property("counted", {"requests": len(expected), "workers killed": KILLED})
    assert miscounted() == {}
    assert not IdempotencyKey.objects.exclude(status="completed").exists()
