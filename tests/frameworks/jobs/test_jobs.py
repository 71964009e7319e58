"""Work that is delivered twice, by real queues and processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.servers import DEADLINE, eventually, running, server_environment
from tests.shopapp.models import Ledger, Order, Outbox

LONGER = int(os.environ.get("JOBS", "1"))
"""How many times as many batches as usual."""
pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]


def orders() -> list[str]:
    return sorted(Order.objects.values_list("reference", flat=True))


def test_a_consumer_that_crashes(tmp_path: Path) -> None:
    """In the work of each of three messages, and before it acknowledges: started again, it makes one order for each."""
    log, offset, crashes = tmp_path / "log", tmp_path / "offset", tmp_path / "crashes"
    crashes.mkdir()
    log.write_text("".join(f'{{"id": "msg_{number}"}}\n' for number in range(3)))
    command = [sys.executable, "-m", "tests.frameworks.jobs.consumer", log, offset, crashes]
    done = [subprocess.run(command, env=server_environment(), check=False, timeout=DEADLINE) for _ in range(7)]
    assert [process.returncode for process in done] == [-signal.SIGKILL] * 6 + [0]
    assert offset.read_text() == "3"
    assert orders() == ["msg_0", "msg_1", "msg_2"]


def publisher(folder: Path, *deliveries: tuple[str, ...]) -> tuple[list[int], list[dict[str, int]]]:
    """How each process has ended, and what was published."""
    ended = [
        subprocess.run(
            [sys.executable, "-m", "tests.frameworks.jobs.publisher", folder, *delivery],
            env=server_environment(),
            check=False,
            timeout=DEADLINE,
        ).returncode
        for delivery in deliveries
    ]
    published = folder / "published"
    return ended, [json.loads(line) for line in published.read_text().splitlines()] if published.exists() else []


def test_what_on_commit_publishes_is_lost_with_its_worker(tmp_path: Path) -> None:
    """The redelivery is replayed, and a replay publishes nothing."""
    once = ("consume-and-publish",)
    ended, published = publisher(tmp_path, (*once, "before it is published"), once)
    assert (ended, published, orders()) == ([-signal.SIGKILL, 0], [], ["a book"])


def test_an_outbox_publishes_what_was_committed(tmp_path: Path) -> None:
    """The worker dies after its COMMIT. A relay that dies publishes again, under the same id."""
    ended, published = publisher(
        tmp_path,
        ("consume", "after the COMMIT"),
        ("consume",),
        ("relay", "before it is published"),
        ("relay", "after it is published"),
        ("relay",),
        ("relay",),
    )
    order = Order.objects.get()
    assert ended == [-signal.SIGKILL, 0, -signal.SIGKILL, -signal.SIGKILL, 0, 0]
    assert published == [{"id": f"placed-{order.pk}", "order": order.pk}] * 2
    assert not Outbox.objects.exists()


def test_a_celery_child_that_is_killed_in_the_middle_of_the_work(tmp_path: Path) -> None:
    """The parent lives. It puts the message back, because of `reject_on_worker_lost`, and another child works."""
    send(tmp_path, "place_order.apply_async(['crash', 1], task_id='crash')")
    with worker(tmp_path):
        eventually("the redelivery", lambda: Ledger.objects.count() == 1)
    assert (tmp_path / "crashed").exists()
    assert orders() == ["crash"]


def test_a_celery_task_that_is_ended_by_its_time_limit_is_lost(tmp_path: Path) -> None:
    """In spite of `acks_late` and `reject_on_worker_lost`. The next task, which waits for the child, is done."""
    send(tmp_path, "place_order.apply_async(['hang', 1], time_limit=1); place_order.delay('next', 1)")
    with worker(tmp_path, "--concurrency", "1"):
        eventually("the next task", lambda: Ledger.objects.count() == 1)
    assert (tmp_path / "hung").exists()
    assert (orders(), [*(tmp_path / "queue").iterdir()]) == (["next"], [])


@pytest.mark.timeout(60 * max(LONGER, 3))
def test_celery_soft_time_limits(tmp_path: Path, record_property: Any) -> None:
    """The exception strikes anywhere in an order, and the child lives on: what it has answered is committed."""
    batches = [f"batch{number}" for number in range(8 * LONGER)]
    send(tmp_path, f"[place_orders.delay(batch) for batch in {batches}]")
    with worker(tmp_path, "--concurrency", "4"):
        for number in range(8, len(batches) + 1, 8):
            eventually("more batches", lambda number=number: len(list(tmp_path.glob("ended-*"))) >= number)
    assert [file.read_text() for file in tmp_path.glob("ended-*")] == [""] * len(batches)
    answered = [line for batch in batches for line in (tmp_path / f"answered-{batch}").read_text().splitlines()]
    assert [line for line in answered if line.endswith("after")] == [f"{batch}-after" for batch in batches]
    assert Counter(answered) <= Counter(orders())
    assert len(set(orders())) == len(orders())
    record_property("counted", {"requests": len(orders()), "soft time limits": len(batches)})


def send(folder: Path, call: str) -> None:
    """By a process of its own: Celery's application is configured at import."""
    pytest.importorskip("celery")
    (folder / "queue").mkdir()
    program = f"from tests.frameworks.jobs.celery_worker import *; {call}"
    environment = server_environment(CELERY_FOLDER=str(folder))
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=DEADLINE)


def worker(folder: Path, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = ("celery", "-A", "tests.frameworks.jobs.celery_worker", "worker", "--pool", "prefork", "--without-gossip")
    return running(*command, "--without-mingle", "--without-heartbeat", *options, CELERY_FOLDER=str(folder))
