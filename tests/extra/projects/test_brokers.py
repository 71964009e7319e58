"""The recipes of docs/events.md as their readers run them: real queues, workers that are killed, redeliveries.

Each recipe is a module of a project, with its times shortened. Beside it stands the same recipe without `@once`, and
one that does not wait, so that "not now" is handed back to the queue.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.acceptance.pages import blocks
from tests.extra.projects.harness import Project
from tests.servers import DEADLINE, eventually, process

NEEDS = ["redis"]
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
VARIANTS = {
    "protected": "@delivered\n@once(",
    "protected without wait": "@delivered\n@once(wait=0, ",
    "NOT protected": "@delivered  # (",
}
"""What stands in the recipe for `@once(`."""
CRON = "import time; from shop.tasks import retry_stalled\nwhile True: retry_stalled(); time.sleep(1)"


@dataclass(frozen=True)
class Recipe:
    package: str
    workers: tuple[tuple[str, ...], ...]
    shortened: tuple[tuple[str, str], ...] = ()
    comes_again: bool = True
    """The task of a killed worker. If not, the reader's cron sends it again."""
    while_it_runs: bool = True
    """A task that works for long comes again by itself. If not, the test sends it again."""


def twice(*command: str) -> tuple[tuple[str, ...], ...]:
    return (command, command)


RECIPES = {
    "celery_tasks": Recipe(
        "celery",
        twice("celery", "-A", "tests.extra.projects.brokers.celery_app", "worker", "-P", "prefork", "-c", "1", *QUIET),
    ),
    "tasks": Recipe(
        "django_tasks_db",
        (
            *twice("django", "db_worker", "--interval", "0.1", "--no-startup-delay"),
            ("django", "shell", "--verbosity", "0", "--command", CRON),
        ),
        (("timedelta(minutes=10)", "timedelta(seconds=3)"), ("timedelta(seconds=30)", "timedelta(seconds=1)")),
    ),
    "procrastinate_tasks": Recipe(
        "procrastinate",
        twice("django", "procrastinate", "worker", "--concurrency", "1", "--fetch-job-polling-interval", "0.2"),
        (
            ("wait=30", "wait=1"),
            ('"*/5 * * * *"', '"* * * * * */2"'),
            ("get_stalled_jobs()", "get_stalled_jobs(seconds_since_heartbeat=3)"),
        ),
        while_it_runs=False,
    ),
    "huey_tasks": Recipe(
        "huey",
        twice("django", "run_huey", "--workers", "1", "--worker-type", "process"),
        (("delay=30", "delay=1"),),
        comes_again=False,
        while_it_runs=False,
    ),
    "dramatiq_tasks": Recipe(
        "dramatiq",
        twice("dramatiq", "tests.extra.projects.brokers.dramatiq_app", "--processes", "1", "--threads", "2"),
        (("max_backoff=60_000", "min_backoff=500, max_backoff=1000"),),
        while_it_runs=False,
    ),
    "stream": Recipe("redis", twice("tests.extra.projects.brokers.stream_worker"), (("60_000", "2000"),)),
}


@dataclass
class Shop:
    project: Project
    name: str
    variant: str
    folder: Path

    @property
    def recipe(self) -> Recipe:
        return RECIPES[self.name]

    @property
    def slug(self) -> str:
        """No key has a space."""
        return self.variant.replace(" ", "-")

    @property
    def protected(self) -> bool:
        return self.variant != "NOT protected"

    def send(self, order: str, number: int = 1) -> None:
        command = [sys.executable, "-m", "tests.extra.projects.brokers.send", order, str(number)]
        subprocess.run(command, env=self.project.variables(), check=True, timeout=DEADLINE)

    def noted(self, order: str, what: str) -> list[int]:
        """The processes in which this has happened to the order."""
        path = self.folder / "deliveries"
        lines = [line.split("|") for line in path.read_text().splitlines()] if path.exists() else []
        return [int(pid) for about, happened, pid in lines if (about, happened) == (order, what)]

    def eventually(self, order: str, what: str, number: int = 1) -> None:
        eventually(f"{number} {what!r} of {order}", lambda: len(self.noted(order, what)) >= number)

    def counted(self, order: str, expected: int, harm: int) -> None:
        orders = self.project.count("shopapp_order", "reference IN (%s, %s)", order, f"shipped {order}")
        deliveries, kills = (len(self.noted(order, what)) for what in ("delivered", "dies"))
        kills += len(self.noted(order, "waits"))
        what = order.removeprefix(f"{self.slug}-").replace("-", " ")
        print(f"counted: {self.name}, {self.variant}: {what}: {deliveries} deliveries, {kills} kills, {orders} orders")
        assert orders == (expected if self.protected else harm)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[str]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("NOT RUN: redis-server is missing: apt install redis-server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    with process(program, "--port", str(port), "--save", "", "--appendonly", "no", ready=answers):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="module", params=product(RECIPES, VARIANTS), ids=", ".join)
def shop(
    request: pytest.FixtureRequest,
    redis_server: str,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_setup: None,
    django_db_blocker: Any,
) -> Iterator[Shop]:
    """To read what a worker says: the files `worker *.log` in the folder of the test."""
    name, variant = request.param
    package = RECIPES[name].package
    if find_spec(package) is None:
        pytest.skip(f"NOT RUN: {package} missing")
    if name == "tasks" and find_spec("django.tasks") is None:
        pytest.skip("NOT RUN: django.tasks needs Django 6.0")
    from redis import Redis  # asked for by NEEDS

    redis = Redis.from_url(redis_server)
    redis.flushall()
    if name == "stream":
        redis.xgroup_create("orders", "shop", id="0", mkstream=True)
    folder = tmp_path_factory.mktemp(name)
    written(folder, name, variant)
    environment = {"RECIPE": name, "REDIS": redis_server, "DELIVERIES": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(Path(__file__).parents[3])])
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        project = stack.enter_context(Project("brokers", "", environment).migrated())
        for number, command in enumerate(RECIPES[name].workers):
            log = stack.enter_context(open(folder / f"worker {number}.log", "ab"))
            stack.enter_context(supervised(*command, env=project.variables(), stdout=log, stderr=log))
        yield Shop(project, name, variant, folder)


def written(folder: Path, name: str, variant: str) -> None:
    """Write the recipe as the module `shop.<name>`. Each delivery is written down above `@once`, or in its place."""
    (package := folder / "shop").mkdir(exist_ok=True)
    text = blocks("docs/events.md")[f"shop/{name}.py"]
    for long, short in RECIPES[name].shortened:
        assert text.count(long) == 1, long
        text = text.replace(long, short)
    text, number = re.subn(r"(?m)^@once\(", VARIANTS[variant], text)
    assert number == 1
    (package / "__init__.py").touch()
    (package / "models.py").write_text("from tests.shopapp.models import Order\n")
    (package / f"{name}.py").write_text(f"from tests.extra.projects.brokers.deliveries import delivered\n\n{text}")


@contextmanager
def supervised(*command: str, **options: Any) -> Iterator[None]:
    """A worker that is started again when it has died, as by systemd."""
    over = Event()

    def keep() -> None:
        while not over.is_set():
            with process(sys.executable, "-m", *command, **options) as worker:
                while worker.poll() is None and not over.wait(0.1):
                    pass

    thread = Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(DEADLINE)


@pytest.mark.parametrize(
    ("moment", "harm"),
    [("dies-before-the-claim", 1), ("dies-before-the-COMMIT", 2), ("dies-after-the-COMMIT", 2)],
)
def test_a_killed_worker(shop: Shop, moment: str, harm: int) -> None:
    """Its task is done by another. Without protection the first order stays, because it is its own transaction."""
    order = f"{shop.slug}-{moment}"
    shop.send(order)
    shop.eventually(order, "dies")
    if not shop.recipe.comes_again:
        shop.send(order)
    shop.eventually(order, "returned")
    shop.counted(order, 1, harm)


def test_a_second_delivery_meets_the_first_which_is_killed_then(shop: Shop) -> None:
    """It waits, or "not now" is handed back to the queue. Neither is the end of the task."""
    order = f"{shop.slug}-waits-to-be-killed"
    shop.send(order)
    shop.eventually(order, "waits")
    if not shop.recipe.while_it_runs:
        shop.send(order)
    shop.eventually(order, "delivered", 2)
    if shop.variant == "protected without wait":
        shop.eventually(order, "not now")
    if not shop.protected:
        shop.eventually(order, "returned")
    os.killpg(os.getpgid(shop.noted(order, "waits")[0]), signal.SIGKILL)
    shop.eventually(order, "returned")
    shop.counted(order, 1, 2)


def test_twenty_deliveries(shop: Shop) -> None:
    """While the first one works, the others come. All of them end with its result."""
    order = f"{shop.slug}-is-slow"
    shop.send(order, 20)
    shop.eventually(order, "returned", 20)
    if shop.variant == "protected without wait":
        assert shop.noted(order, "not now")
    shop.counted(order, 1, 20)
