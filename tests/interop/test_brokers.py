"""Brokers that deliver again what was not acknowledged: one effect, and the same result."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest

from tests.interop.brokers import redis_server
from tests.interop.deliveries import results
from tests.servers import DEADLINE, eventually, running
from tests.shopapp.models import Order

Consumer = Callable[[str], AbstractContextManager[subprocess.Popen[bytes]]]
"""Starts a consumer of this name."""
pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="NOT RUN: no redis-server here")
on_demand = pytest.mark.skipif("INTEROP" not in os.environ, reason="NOT RUN: it takes longer, tox run -e interop")


def one_effect_in_spite_of_a_redelivery(consumer: Consumer, message: str) -> None:
    """The first consumer dies between COMMIT and acknowledgement. The second one gets the message again."""
    with consumer("first") as process:
        assert process.wait(3 * DEADLINE) == -signal.SIGKILL
    assert len(results(message)) == 1
    with consumer("second"):
        eventually("the redelivery", lambda: len(results(message)) > 1)
    (protected, unprotected), (protected_again, unprotected_again), *_ = results(message)
    assert protected == protected_again
    assert unprotected != unprotected_again
    assert Order.objects.filter(reference=message).count() == 1
    assert Order.objects.filter(reference=f"{message} unprotected").count() > 1


def one_effect_with_celery(broker: str, message: str, **options: Any) -> None:
    from celery import Celery

    with closing(Celery(broker=broker, set_as_current=False)) as app, app.connection_for_write() as line:
        app.send_task("handle", [message], connection=line)
    command = ("celery", "-A", "tests.interop.celery_worker", "worker", "--pool", "solo", "--without-gossip")

    def worker(name: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        quiet = ("--without-mingle", "--without-heartbeat", "--hostname", name)
        return running(*command, *quiet, BROKER=broker, BROKER_OPTIONS=json.dumps(options))

    one_effect_in_spite_of_a_redelivery(worker, message)


@needs_redis
def test_a_redis_stream(key: str) -> None:
    """As with Kafka, another consumer of the group gets what was not acknowledged."""
    redis = pytest.importorskip("redis", reason="NOT RUN: no client for Redis here")
    with redis_server() as socket:
        with redis.Redis(unix_socket_path=socket) as stream:
            stream.xgroup_create("orders", "shop", mkstream=True)
            stream.xadd("orders", {"message": key})
        one_effect_in_spite_of_a_redelivery(lambda name: running("tests.interop.stream_consumer", socket, name), key)


@on_demand
@needs_redis
def test_celery_with_redis(key: str) -> None:
    """The broker delivers again after its visibility timeout, which is over when the second worker has started."""
    pytest.importorskip("celery", reason="NOT RUN: no Celery here")
    pytest.importorskip("redis", reason="NOT RUN: no client for Redis here")
    with redis_server() as socket:
        one_effect_with_celery(f"redis+socket://{socket}", key, visibility_timeout=0.1)
