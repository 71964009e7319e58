"""Work that is delivered twice, by real queues and processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import DEADLINE, eventually, running, server_environment
from tests.shopapp.models import Ledger, Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]


def orders() -> list[str]:
    return sorted(Order.objects.values_list("reference", flat=True))


def test_a_consumer_that_crashes(tmp_path: Path) -> None:
    """In the work of each of three messages, and before it acknowledges: started again, it makes one order for each."""
    log, offset, crashes = tmp_path / "log", tmp_path / "offset", tmp_path / "crashes"
    crashes.mkdir()
    log.write_text("".join(f'{{"id": "msg_{number}"}}\n' for number in range(3)))
    command = [sys.executable, "-m", "tests.jobs.consumer", log, offset, crashes]
    done = [subprocess.run(command, env=server_environment(), check=False, timeout=DEADLINE) for _ in range(7)]
    assert [process.returncode for process in done] == [-signal.SIGKILL] * 6 + [0]
    assert offset.read_text() == "3"
    assert orders() == ["msg_0", "msg_1", "msg_2"]


def test_a_celery_child_that_is_killed_in_the_middle_of_the_work(tmp_path: Path) -> None:
    """The parent lives. It puts the message back, because of `reject_on_worker_lost`, and another child works."""
    pytest.importorskip("celery")
    (tmp_path / "queue").mkdir()
    # Sent by a process of its own: Celery's application is configured at import.
    send = "from tests.jobs.celery_worker import place_order; place_order.apply_async(['crash', 1], task_id='crash')"
    folder = {"CELERY_FOLDER": str(tmp_path)}
    subprocess.run([sys.executable, "-c", send], env=server_environment(**folder), check=True, timeout=DEADLINE)
    command = ("celery", "-A", "tests.jobs.celery_worker", "worker", "--pool", "prefork", "--without-gossip")
    with running(*command, "--without-mingle", "--without-heartbeat", **folder):
        eventually("the redelivery", lambda: Ledger.objects.count() == 1)
    assert (tmp_path / "crashed").exists()
    assert orders() == ["crash"]
