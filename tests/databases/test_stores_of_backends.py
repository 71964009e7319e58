"""What each store does beside the contract of backends: ../contracts/test_backends.py."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import redis
from django.test import RequestFactory

from django_idempotency import StoreBusy, idempotent, run_once
from django_idempotency.backends import KeyValueBackend
from django_idempotency.backends.memory import MemoryBackend
from django_idempotency.backends.redis import RedisBackend
from tests.backends import configured, free_port, redis_server
from tests.leases import Broken
from tests.redis_clusters import HIGHEST_PORT, ClusterBackend, redis_cluster
from tests.views import answers


def test_redis_is_asked_twice() -> None:
    """Then the error is the caller's."""
    asked: list[Any] = []

    class Counted(RedisBackend):
        def _swap(self, *command: Any) -> bytes | None:
            asked.append(command)
            return super()._swap(*command)

    with pytest.raises(redis.ConnectionError):
        Counted(f"redis://127.0.0.1:{free_port()}").swap("name", None, b"1", 30)
    assert asked == [("django-idempotency:name", b"", b"1", 30000)] * 2


def test_redis_waits_for_replicas_of_a_change_only() -> None:
    """Without the replica, what is only read is still an answer."""
    with redis_server() as (url, _):
        alone, safe = RedisBackend(url, prefix="a:"), RedisBackend(url, prefix="a:", replicas=1)
        alone.swap("known", None, b"1 known", 30)
        assert (safe.swap("known", None, b"1 rival", 30), safe.swap("none", None, None, 0)) == (b"1 known", None)
        with pytest.raises(redis.RedisError, match=r"^0 of 1 replicas confirmed the change in time$"):
            safe.swap("new", None, b"1 new", 30)


def test_redis_writes_a_repeated_swap_again() -> None:
    """Redis 8 lets replicas confirm only what the same connection has written. The repeat's time limit then holds."""
    backend = RedisBackend(configured("redis")["OPTIONS"]["url"], prefix="again:")
    assert [backend.swap("k", None, b"1 claim", seconds) for seconds in (30, 60)] == [None, b"1 claim"]
    assert backend.swap("k", None, b"1 rival", 90) == b"1 claim"
    assert 30_000 < backend.client.pttl("again:k") <= 60_000


@pytest.mark.parametrize("replicas", [0, 1])
def test_redis_never_takes_an_earlier_answer_for_its_own(monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
    """Of a swap that a signal's exception has interrupted before its answer was read."""
    backend = RedisBackend(configured("redis")["OPTIONS"]["url"], prefix=f"signal-{replicas}:")
    backend.swap("known", None, b"1 known", 30)
    backend.replicas = replicas
    kind = backend.client.connection_pool.connection_class
    read, armed = kind.read_response, [True]

    def struck(*args: Any, **kwargs: Any) -> Any:
        if armed and armed.pop():
            raise Broken
        return read(*args, **kwargs)

    monkeypatch.setattr(kind, "read_response", struck)
    with pytest.raises(Broken):
        backend.swap("known", None, None, 0)
    assert [backend.swap(name, None, None, 0) for name in ("unknown", "known", "unknown")] == [None, b"1 known", None]


def test_redis_refuses_replicas_on_a_cluster() -> None:
    """When it is made: the pipeline of a cluster's client has no WAIT, so each request would get 503."""
    with redis_cluster(()) as url:
        assert ClusterBackend(url).swap("k", None, b"1 claim", 30) is None
        with pytest.raises(ValueError, match=r"^replicas=1 with a cluster: "):
            ClusterBackend(url, replicas=1)


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_cluster_that_is_down_when_a_process_starts(rf: RequestFactory, settings: Any, replicas: int) -> None:
    """Its client connects when it is made. Requests get 503, as they do for a single server, and run once it is up."""
    port = free_port(HIGHEST_PORT)
    options = {"url": f"redis://127.0.0.1:{port}", "replicas": replicas}
    entry = {"BACKEND": "tests.redis_clusters.ClusterBackend", "OPTIONS": options}
    settings.IDEMPOTENCY = {"BACKENDS": {"events": entry}}
    view = idempotent(backend="events", lease=30, scope=lambda request: "s", operation="o")(answers(status=201))
    request = partial(rf.post, "/", headers={"Idempotency-Key": "k"})
    down = view(request())
    assert (down.status_code, "Retry-After" in down) == (503, True)
    with pytest.raises(StoreBusy):
        run_once(lambda: 1, scope="s", key="k", operation="o", backend="events", lease=30)
    if not replicas:
        with redis_cluster((), port=port):
            assert [view(request())["Idempotency-Replayed"] for _ in range(2)] == ["false", "true"]


def test_a_cluster_that_goes_down(rf: RequestFactory) -> None:
    """The client then raises an error that is none of redis-py's others."""
    with redis_cluster(()) as url:
        backend = ClusterBackend(url)
        assert backend.swap("k", None, b"1 claim", 30) is None
    with pytest.raises(redis.RedisError):
        backend.swap("k", None, None, 0)


def test_prefixes_keep_projects_apart() -> None:
    url = configured("redis")["OPTIONS"]["url"]
    shop, bank = RedisBackend(url, prefix="shop:"), RedisBackend(url, prefix="bank:")
    shop.swap("apart", None, b"1 shop", 30)
    assert (bank.swap("apart", None, None, 0), shop.client.get("shop:apart")) == (None, b"1 shop")


def test_an_error_of_dynamodb_propagates() -> None:
    """Such as that of a table that does not exist."""
    options = {**configured("moto")["OPTIONS"], "table": "nowhere"}
    from botocore.exceptions import ClientError

    from django_idempotency.backends.dynamodb import DynamoDBBackend

    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        DynamoDBBackend(**options).swap("name", None, b"1", 30)


def test_memory_does_not_grow_for_ever() -> None:
    """What has expired is dropped at a thousand keys, and the others stay."""
    backend = MemoryBackend()
    backend.swap("first", None, b"1", 30)
    for number in range(999):
        backend.swap(str(number), None, b"1", -1)
    backend.swap("last", None, b"1", 30)
    assert list(backend._values) == ["first", "last"]


def test_a_backend_need_not_check_anything() -> None:
    assert list(KeyValueBackend().check()) == []
