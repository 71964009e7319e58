"""Workers killed, connections cut and the database restarted at random, under clients that retry; then the books.

The recovery command runs beside the clients, and is killed, too. All that the server stores is encrypted.

Short here. Twenty times as long, by a seed that makes the same plan again: `CHAOS=20 CHAOS_SEED=7 tox run -e chaos`.
`chaos-mysql` does the same on MySQL, but for the restarts.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

pytest.importorskip("rest_framework")

from django.db import OperationalError, connection, connections

from django_idempotency.models import IdempotencyKey
from tests.at_hand import SERVERS, restart, until_ready
from tests.at_rest import OLD
from tests.interrupts.retrying import Retrying, knowing, look_into_the_books, recover_to_the_end, serving
from tests.leases import lapse
from tests.servers import DEADLINE, eventually, fake_gateway, holding, mysql_sessions
from tests.shopapp.models import Order
from tests.sql import has_setting

LONGER = int(os.environ.get("CHAOS", "1"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
KILLS, REQUESTS = (50 * LONGER, 250 * LONGER) if LONGER > 1 else (15, 60)
PATHS = ("/plain", "/rest", "/retry", "/hold", "/settled")
RECOVERY = 60
"""Boundaries of one recovery, about."""
PROBES = 8
"""Requests of each path that are measured: a busy machine adds boundaries, and a kill must find one in each run."""
CLIENTS = 8
CUTS = 10
"""Connections that are cut for each request that ends."""
LIMIT = 300 * LONGER
"""Seconds until a test counts as hung. A busy machine needs some times as long as an idle one."""
pytestmark = [
    pytest.mark.only_on("postgresql", "mysql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(LIMIT),
]
ON_POSTGRESQL = pytest.mark.only_on("postgresql")
ENCRYPTED = {"SERVER_ENCRYPTION_KEY": OLD}
EMBEDDED = pytest.mark.skipif(not SERVERS, reason="DATABASE_URL names a server that is not ours to stop")


@pytest.fixture(autouse=True)
def _the_person_has_the_key(settings: Any) -> None:
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}


@pytest.fixture(autouse=True)
def _seed() -> None:
    print(f"CHAOS={LONGER} CHAOS_SEED={SEED}")  # shown if the test fails


@pytest.fixture(autouse=True)
def _user_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On MySQL, so that the server's connections can be told from those of the test. PostgreSQL names connections."""
    if connection.vendor == "postgresql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("CREATE USER worker@localhost")
        cursor.execute("GRANT ALL ON *.* TO worker@localhost")
    monkeypatch.setenv("SERVER_USER", "worker")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP USER worker@localhost")


@contextmanager
def everything(**environment: str) -> Iterator[tuple[httpx.Client, httpx.Client, httpx.Client]]:
    with (
        fake_gateway() as gateway,
        fake_gateway("--without-keys") as old_gateway,
        serving(**knowing(gateway, old_gateway), **ENCRYPTED, **environment) as client,
    ):
        yield client, gateway, old_gateway


def finish(retrying: Retrying, old_gateway: httpx.Client) -> None:
    """Retry to the end, with a person for what is held; the answer is a success, and stays what it is."""
    answer = retrying.until_final(lambda: ask_a_person(old_gateway, retrying.key))
    # `reconcile` of /settled gives up what was not charged.
    assert answer.status_code == 201 or (retrying.path, answer.status_code) == ("/settled", 402)
    replay = retrying.until_final()
    assert (replay.headers["Idempotency-Replayed"], replay.content) == ("true", answer.content)


def ask_a_person(old_gateway: httpx.Client, key: str) -> None:
    try:
        look_into_the_books(old_gateway, key)
    except connection.Database.Error:
        return  # cut, too: they try again
    except Exception as error:
        if not isinstance(error.__cause__, connection.Database.Error):
            raise
        connections.close_all()


def assert_once(done: list[Retrying], *gateways: httpx.Client) -> None:
    """No double, nothing lost, nothing stuck: for every key, in our books and in the gateways'. All is encrypted."""
    orders = Counter(Order.objects.values_list("reference", flat=True))
    charges = Counter(
        charge["reference"] for gateway in gateways for charge in gateway.get("/charges").json()["charges"]
    )
    for retrying in done:
        key = retrying.key
        if retrying.path in ("/retry", "/hold"):
            assert (orders[key], charges[f"charge {key}"], charges[f"mail {key}"]) == (1, 1, 1), retrying.path
        elif retrying.path == "/settled":
            assert (orders[key], charges[f"charge {key}"], charges[f"mail {key}"]) in ((1, 1, 1), (0, 0, 0))
    plain = [retrying for retrying in done if retrying.path in ("/plain", "/rest")]
    assert sum(orders.values()) - sum(orders[retrying.key] for retrying in done) == len(plain)
    assert not IdempotencyKey.objects.exclude(status="completed").exists()
    assert IdempotencyKey.objects.count() == len(done)
    assert not IdempotencyKey.objects.exclude(headers__startswith="enc1:").exists()


@contextmanager
def recovering(client: httpx.Client, *, killed: bool = False) -> Iterator[None]:
    """The recovery command runs again and again, beside the clients. It may be killed at random, too."""
    over, chance = threading.Event(), random.Random(SEED)

    def recover() -> None:
        while not over.wait(chance.uniform(0.1, 0.5)):
            with suppress(httpx.TransportError):
                client.post("/recover", headers={"X-Kill-At": str(killed * chance.randint(1, 2 * RECOVERY))})

    thread = threading.Thread(target=recover)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_workers_killed_at_random(record_property: Any) -> None:
    """At any boundary of any mode. Clients of /settled do not come back before the recovery has settled their keys."""
    chance = random.Random(SEED)
    with everything() as (client, gateway, old_gateway):
        probes = [Retrying(client, path) for path in PATHS for _ in range(PROBES)]
        measured = [(probe.path, probe.boundaries()) for probe in probes]
        boundaries = {path: min(count for of, count in measured if of == path) for path in PATHS}

        def one(number: int, path: str, place: int) -> Retrying:
            retrying = Retrying(client, path)
            if path == "/settled":
                retrying.killed_at(place)
                lapse(key=retrying.key)
                connection.close()  # of this thread
                return retrying
            retrying.killed_at(place)
            finish(retrying, old_gateway)
            return retrying

        plan = [(number, path := chance.choice(PATHS), chance.randint(1, boundaries[path])) for number in range(KILLS)]
        with recovering(client, killed=True), ThreadPoolExecutor(4) as pool:
            done = [future.result(2 * DEADLINE) for future in [pool.submit(one, *entry) for entry in plan]]
        lapse()  # the leases of recoveries that were killed
        recover_to_the_end(client)
        for retrying in done:
            finish(retrying, old_gateway)
        assert_once([*probes, *done], gateway, old_gateway)
        record_property("counted", figures([*probes, *done], {"workers killed": KILLS}))


def figures(done: list[Retrying], faults: dict[str, int]) -> dict[str, int]:
    """For the end of the output."""
    return {"requests": len(done), "attempts": sum(one.attempts for one in done), **faults}


class Progress:
    """Lets trouble wait for requests, or no request would ever end on a machine that is busy enough."""

    def __init__(self) -> None:
        self.over = False
        self._ended = threading.Semaphore(0)

    def request_ended(self) -> None:
        self._ended.release()

    def ends(self) -> None:
        self.over = True
        self._ended.release(REQUESTS)

    def after(self, requests: int) -> bool:
        """Wait until so many more requests have ended. Whether others are still to come."""
        for _ in range(requests):
            self._ended.acquire()
        return not self.over


def run_under(trouble: Callable[[Progress], None], *paths: str, **environment: str) -> list[Retrying]:
    """Send all requests while `trouble` goes on."""
    chance = random.Random(SEED)
    progress = Progress()
    with everything(**environment) as (client, gateway, old_gateway):

        def one(path: str) -> Retrying:
            retrying = Retrying(client, path)
            finish(retrying, old_gateway)
            progress.request_ended()
            return retrying

        troublemaker = threading.Thread(target=trouble, args=[progress])
        troublemaker.start()
        try:
            with recovering(client), ThreadPoolExecutor(CLIENTS) as pool:
                sent = [pool.submit(one, chance.choice(paths)) for _ in range(REQUESTS)]
                done = [future.result(LIMIT) for future in sent]
        finally:
            progress.ends()
            troublemaker.join()
        connection.close()
        assert_once(done, gateway, old_gateway)
    return done


def failures(done: list[Retrying]) -> int:
    """How many attempts have failed."""
    return sum(retrying.failures for retrying in done)


CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'worker-%' AND state <> 'idle'
ORDER BY random() LIMIT 1
"""


def cut_one() -> bool:
    """End the connection of a worker that is at work, if there is one."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(CUT)
            return bool(cursor.fetchall())
        if at_work := mysql_sessions(at_work=True):
            with suppress(OperationalError):  # it has ended by itself
                cursor.execute("KILL %s", [random.choice(at_work)])
                return True
    return False


def test_connections_cut_at_random(record_property: Any) -> None:
    """Some of them in COMMIT, when nobody knows what became of it: the retry finds out."""
    cuts = 0

    def cut(progress: Progress) -> None:
        nonlocal cuts
        chance, moment = random.Random(SEED), threading.Event()
        for number in range(CUTS * REQUESTS):
            moment.wait(chance.uniform(0, 0.02))  # anywhere in a request
            if number % CUTS == 0 and number and not progress.after(1):
                break
            cuts += cut_one()
        connection.close()  # of this thread

    done = run_under(cut, *PATHS)
    assert failures(done) > 0
    record_property("counted", figures(done, {"connections cut": cuts}))


@EMBEDDED
@ON_POSTGRESQL
def test_the_database_restarted_at_random(record_property: Any) -> None:
    """Crashed on the spot (SIGQUIT), recovered, and found as it was."""
    restarts = 0

    def crash(progress: Progress) -> None:
        nonlocal restarts
        chance = random.Random(SEED)
        while progress.after(chance.randint(5, 15)):
            restart(signal.SIGQUIT)
            restarts += 1

    with connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")  # else it would recover all that earlier tests have written, too
    connection.close()
    done = run_under(crash, "/plain", "/retry")
    assert failures(done) > 0
    assert restarts > 0
    record_property("counted", figures(done, {"crashes of the database": restarts}))


@ON_POSTGRESQL
@pytest.mark.parametrize("isolation", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_other_isolation_levels(isolation: str) -> None:
    """Bursts of fifty: conflicts and serialization failures, and one order for each key."""
    with everything(SERVER_ISOLATION=isolation) as (client, gateway, old_gateway):
        for path in ("/plain", "/retry"):
            burst = Retrying(client, path)
            with ThreadPoolExecutor(50) as pool:
                answers = [future.result(DEADLINE) for future in [pool.submit(burst.send) for _ in range(50)]]
            assert {answer.status_code for answer in answers} <= {201, 409, 500}
            finish(burst, old_gateway)
            assert_once([burst], gateway)
            Order.objects.all().delete()
            IdempotencyKey.objects.all().delete()


NEW_CONNECTIONS = {"SERVER_CONN_MAX_AGE": "0"}
"""A server that opens a connection for each request, so that each request has the setting."""


@contextmanager
def setting(assignment: str) -> Iterator[None]:
    """A setting of every new connection to the test database."""
    name, database = connection.ops.quote_name(connection.settings_dict["NAME"]), connection.copy()
    try:
        with database.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} SET {assignment}")
            try:
                yield
            finally:
                cursor.execute(f"ALTER DATABASE {name} RESET {assignment.partition(' ')[0]}")
    finally:
        database.close()


@ON_POSTGRESQL
@pytest.mark.parametrize("path", ["/plain", "/retry"])
def test_a_read_only_database_fails_closed(path: str) -> None:
    """As after a failover: no order, no charge; the retry does it."""
    with everything(**NEW_CONNECTIONS) as (client, gateway, old_gateway):
        retrying = Retrying(client, path)
        with setting("default_transaction_read_only = on"):
            assert retrying.send().status_code == 503
        assert (Order.objects.count(), gateway.get("/charges").json()["charges"]) == (0, [])
        finish(retrying, old_gateway)
        assert_once([retrying], gateway)


@EMBEDDED
@ON_POSTGRESQL
@pytest.mark.parametrize("path", ["/plain", "/retry"])
def test_a_database_that_is_down_fails_closed(path: str) -> None:
    """Nothing has run; the retry does it."""
    with everything() as (client, gateway, old_gateway):
        retrying = Retrying(client, path)
        connection.close()
        SERVERS[0]._stop()
        try:
            assert retrying.send().status_code == 503
            assert gateway.get("/charges").json()["charges"] == []
        finally:
            until_ready(SERVERS[0].ensure_postgres_running)
        finish(retrying, old_gateway)
        assert_once([retrying], gateway)


@ON_POSTGRESQL
@pytest.mark.parametrize(
    "timeout", ["statement_timeout = '300ms'", "lock_timeout = '300ms'", "transaction_timeout = '1s'"]
)
def test_a_timeout_of_the_database_rolls_back(timeout: str) -> None:
    """In the middle of the view: an error, no order; the retry does it."""
    has_setting(timeout.split()[0])
    with everything(**NEW_CONNECTIONS) as (client, _, old_gateway):
        retrying = Retrying(client, "/plain")
        with holding(), setting(timeout):
            assert retrying.send(**{"X-Pause": "before COMMIT"}).status_code == 500
        assert not Order.objects.exists()
        finish(retrying, old_gateway)
        assert_once([retrying])


def test_the_books_are_looked_at() -> None:
    """These tests can fail: an order too many, and a key that is stuck."""
    Order.objects.create()
    with pytest.raises(AssertionError):
        assert_once([])
    Order.objects.all().delete()
    eventually("the table to be empty", lambda: not IdempotencyKey.objects.exists())
