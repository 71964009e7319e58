"""From the first release's schema and rows to this one and back, while servers of both answer keyed requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import httpx
import pytest

pytest.importorskip("rest_framework")

from django.core.management import call_command
from django.db import connection

from tests.crash.retrying import knowing
from tests.previous_release import FIRST, unpack
from tests.servers import DEADLINE, eventually, fake_gateway, gunicorn
from tests.shopapp.models import Order

SCHEMA = "0003"
"""The last migration of that release."""
PATHS = ("/plain", "/rest", "/retry")
pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder with the first release."""
    if not unpack(FIRST, tmp_path):
        pytest.skip("NOT RUN: the history of this checkout does not reach back to the first release")
    return tmp_path


@pytest.fixture
def schema_of_the_release() -> Iterator[None]:
    migrate(SCHEMA)
    yield
    migrate()


def migrate(*target: str) -> None:
    call_command("migrate", "django_idempotency", *target, verbosity=0)


def columns() -> set[str]:
    with connection.cursor() as cursor:
        table = connection.introspection.get_table_description(cursor, "django_idempotency_idempotencykey")
    return {column.name for column in table}


class Clients:
    """They send new operations until they are told to stop. Each is a success, and its retry gets the same bytes."""

    def __init__(self, *servers: httpx.Client) -> None:
        self.servers = servers
        self.over = Event()
        self.answers: dict[str, tuple[str, httpx.Client, bytes]] = {}

    def once(self, server: httpx.Client, path: str) -> None:
        key = str(uuid4())
        first = send(server, path, key)
        assert (first.status_code, send(server, path, key).content) == (201, first.content), first.text
        self.answers[key] = (path, server, first.content)

    def run(self, number: int) -> None:
        while not self.over.is_set():
            for server in self.servers:
                self.once(server, PATHS[number])

    @contextmanager
    def at_work(self) -> Iterator[Callable[[int], None]]:
        """Gives a function that waits for so many more operations."""
        with ThreadPoolExecutor(len(PATHS)) as pool:
            running = [pool.submit(self.run, number) for number in range(len(PATHS))]

            def more(operations: int) -> None:
                wanted = len(self.answers) + operations
                eventually("more operations", lambda: len(self.answers) >= wanted or any(r.done() for r in running))

            try:
                yield more
            finally:
                self.over.set()
                for future in running:
                    future.result(DEADLINE)

    def replays(self) -> None:
        """Every operation that was answered so far is still answered with the same bytes."""
        for key, (path, server, content) in self.answers.items():
            assert send(server, path, key).content == content


def send(server: httpx.Client, path: str, key: str) -> httpx.Response:
    return server.post(path, json={"a": 1}, headers={"Idempotency-Key": key, "X-Reference": key})


@contextmanager
def serving(*options: str, **environment: str) -> Iterator[httpx.Client]:
    with (
        gunicorn("--workers", "1", "--threads", "6", *options, **environment) as url,
        httpx.Client(base_url=url, timeout=DEADLINE) as client,
    ):
        yield client


@pytest.mark.usefixtures("schema_of_the_release")
def test_old_and_new_servers_go_on_while_it_migrates(release: Path) -> None:
    """Forward under the old servers, both side by side, and back. One order and one charge for each key."""
    with fake_gateway() as gateway, serving("--chdir", str(release), **knowing(gateway, gateway)) as old:
        before, beside, after = Clients(old), Clients(old), Clients(old)
        with before.at_work() as more:
            more(20)
            migrate()
            more(20)
        assert "resource_id" in columns()

        with serving(**knowing(gateway, gateway)) as new:
            beside.servers = (old, new)
            with beside.at_work() as more:
                more(20)
                shared = [both_at_once(old, new) for _ in range(10)]
            beside.replays()
            # The new server knows the old one's keys, and compares requests in another way: CHANGELOG.md.
            assert {send(new, path, key).status_code for key, (path, _, _) in before.answers.items()} == {422}
        before.replays()

        with after.at_work() as more:
            more(20)
            migrate(SCHEMA)
            more(20)
        assert "resource_id" not in columns()
        before.replays()
        after.replays()
        charges = Counter(charge["reference"] for charge in gateway.get("/charges").json()["charges"])
    operations = {**before.answers, **beside.answers, **after.answers}
    assert Order.objects.count() == len(operations) + len(shared)
    leased = [key for key, (path, _, _) in operations.items() if path == "/retry"]
    assert charges == Counter([f"{step} {key}" for key in leased for step in ("charge", "mail")])


def both_at_once(old: httpx.Client, new: httpx.Client) -> Any:
    """One key on both: one of them works. The other refuses, also because it compares requests in another way."""
    key = str(uuid4())
    with ThreadPoolExecutor(2) as pool:
        answers = [future.result(DEADLINE) for future in [pool.submit(send, s, "/plain", key) for s in (old, new)]]
    statuses = [answer.status_code for answer in answers]
    assert statuses.count(201) == 1
    assert set(statuses) - {201} <= {409, 422}
    return key
