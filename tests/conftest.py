from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management.color import no_style
from django.db import connection
from django.test import Client

from tests.interrupts.strikes.figures import pytest_terminal_summary  # noqa: F401
from tests.sql import isolated

pytest.register_assert_rewrite(  # they assert, and are no test modules
    *("tests.acceptance.tutorial", "tests.contracts", "tests.interrupts.retrying", "tests.http", "tests.leases"),
    *("tests.extra.projects.harness", "tests.works"),
)
LONG = (
    *("acceptance/test_demo.py", "attacks/test_in_flight.py", "browser", "databases/clusters", "databases/upgrades"),
    *(f"interrupts/test_{name}.py" for name in ("bursts", "chaos", "half_done", "inner_blocks", "messages")),
    *("interrupts/strikes", "interrupts/test_recovery.py", "interrupts/test_restarts.py"),
    *("acceptance/test_tutorial.py", "frameworks/jobs"),
)
"""What needs a minute of its own: the demo once more, the tutorial with its installation, whole browsers, 10,000 keys,
clusters of servers, upgrades under traffic, queues whose workers are killed, servers that are killed at random or
restarted, and exceptions that strike everywhere."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only_on(*vendors): run on these databases only")
    config.addinivalue_line("markers", "long: the test is in LONG; `tox run -e tests` leaves it to `.ci/run`")
    config.addinivalue_line("markers", "server: the test needs a server, which the quick run does without")
    config.addinivalue_line("markers", "uncounted: the test changes steps by hand, or leaves no connection")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long = [Path(__file__).parent / part for part in LONG]
    for item in items:
        if any(item.path.is_relative_to(part) for part in long):
            item.add_marker(pytest.mark.long)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))  # `.ci/run` has other lanes at work beside them
        for marker in item.iter_markers("only_on"):
            if connection.vendor not in marker.args:
                reason = f"about {' and '.join(marker.args)}, the database at hand is {connection.vendor}"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _rows_count_their_steps(request: pytest.FixtureRequest, _django_db_marker: None) -> Iterator[None]:
    """Whatever a test has done to keys, their rows say what their steps come to. See Note [One truth about a key].

    A test that changes steps by hand, or leaves no connection behind, says so: `@pytest.mark.uncounted`.
    """
    yield
    by_hand = request.node.get_closest_marker("uncounted") is not None
    if request.node.get_closest_marker("django_db") is None or by_hand or connection.needs_rollback:
        return
    if connection.in_atomic_block and not connection.is_usable():
        return
    from tests.step_rows import miscounted  # models can be imported now

    assert miscounted() == {}


@pytest.fixture(autouse=True)
def _clean() -> None:
    """What an earlier test has left in the gateway's books, in the hooks and in the lists of what has run."""
    if (urls := sys.modules.get("tests.leased_urls")) is not None:
        urls.GATEWAY.reset()
        urls.HOOKS.clear()
    if (works := sys.modules.get("tests.works")) is not None:
        works.RUNS.clear()


@pytest.fixture(autouse=True)
def nothing_to_purge(request: pytest.FixtureRequest) -> None:
    """On InnoDB each test with threads begins with new tables.

    InnoDB purges a deleted row some time later. Until then an INSERT of the same key locks the gap beside that row, and
    other new keys in that gap wait.
    """
    marker = request.node.get_closest_marker("django_db")
    # Other tests have no threads on this database: they run in one transaction, or on a server of their own.
    transaction = marker is not None and marker.kwargs.get("transaction")
    if connection.vendor == "mysql" and transaction and request.node.path.parent.name == "threads":
        from django_idempotency.models import IdempotencyKey, IdempotencyStep

        request.getfixturevalue("db")
        tables = [model._meta.db_table for model in (IdempotencyStep, IdempotencyKey)]
        # Django's flush deletes the rows; with `reset_sequences` it truncates the tables.
        connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), tables, reset_sequences=True))


@pytest.fixture(scope="session", autouse=True)
def _servers_of_backends_end() -> Iterator[None]:
    yield
    if (backends := sys.modules.get("tests.backends")) is not None:
        backends.stop_servers()


@pytest.fixture(scope="session")
def on_mysql(django_db_setup: None, django_db_blocker: Any) -> None:
    """Of the two databases that Django calls mysql, this is MySQL."""
    with django_db_blocker.unblock():
        if connection.mysql_is_mariadb:
            pytest.skip("about MySQL, the database at hand is MariaDB")


@pytest.fixture(scope="session")
def on_mariadb(django_db_setup: None, django_db_blocker: Any) -> None:
    """Of the two databases that Django calls mysql, this is MariaDB."""
    with django_db_blocker.unblock():
        if not connection.mysql_is_mariadb:
            pytest.skip("about MariaDB, the database at hand is MySQL")


@pytest.fixture
def key() -> str:
    return str(uuid4())


@pytest.fixture
def post(client: Client, key: str) -> Callable[..., Any]:
    """Post JSON under this test's key."""

    def send(path: str, data: Any = None, *, key: str | None = key, client: Client = client, **kwargs: Any) -> Any:
        headers = {**({} if key is None else {"Idempotency-Key": key}), **kwargs.pop("headers", {})}
        kwargs.setdefault("content_type", "application/json")
        return client.post(path, {} if data is None else data, headers=headers, **kwargs)

    return send


@pytest.fixture
def atomic_requests() -> Iterator[None]:
    """Django opens a transaction on the default alias for each request."""
    settings = connection.settings_dict
    settings["ATOMIC_REQUESTS"] = True
    yield
    settings["ATOMIC_REQUESTS"] = False


@pytest.fixture
def in_threads() -> Callable[..., list[Any]]:
    """Run a callable n times at once, each in a thread with database connections of its own."""

    def run(n: int, target: Callable[[int], Any]) -> list[Any]:
        pool = ThreadPoolExecutor(n)
        futures = [pool.submit(isolated(target), number) for number in range(n)]
        running = wait(futures, timeout=60).not_done
        pool.shutdown(wait=not running)
        late = [number for number, future in enumerate(futures) if future in running]
        assert late == [], f"waited 60 seconds in vain for threads {late} of {n} in {target!r}"
        return [future.result() for future in futures]

    return run
