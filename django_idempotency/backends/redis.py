"""Keys in Redis or Valkey. Install `django-idempotency[redis]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any

import redis
from django.core.checks import CheckMessage, Warning
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from ..limits import limit_in
from . import KeyValueBackend

__all__ = ["RedisBackend"]

SWAP = """\
local current = redis.call('GET', KEYS[1])
if (current or '') == ARGV[1] or current == ARGV[2] then
  if ARGV[2] == '' then
    redis.call('DEL', KEYS[1])
  else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  end
end
return current
"""
"""An empty string stands for an absent value here, because no stored value is empty.

If the answer to a swap is lost, the second try finds the value that the first one wrote, and writes it again. Redis 8's
WAIT only waits for what its own connection has written. Without that write, WAIT on a new connection would therefore
confirm a value that no replica has."""
TIMEOUT = 1.0
"""How many seconds to wait for an answer, and again for the answer to a second try. redis-py's defaults are
five seconds and more tries."""
REPLICAS_TIMEOUT = 900
"""How many milliseconds the replicas are given to confirm a change. This must be less than `TIMEOUT`."""


class RedisBackend(KeyValueBackend):
    """Keeps keys in Redis or Valkey, version 6.2 or newer. Each swap is one script that runs on the server.

    Args:
        url: the address in the form that redis-py's `from_url` accepts, such as "rediss://user:password@host:6379/0".
        prefix: the string that each name starts with. Projects that share a server need different prefixes.
        replicas: how many replicas must have received a claim or a result before it counts. With 0, a failover can lose
            the latest keys, and retries with these keys run the work again. A cluster can't wait for replicas.

    Raises:
        ValueError: redis-py can't use the `url`, or `replicas` is combined with the client of a cluster.
    """

    def __init__(self, url: str, *, prefix: str = "django-idempotency:", replicas: int = 0) -> None:
        self.url, self.prefix, self.replicas = url, prefix, replicas
        if replicas or type(self).connect is RedisBackend.connect:
            with suppress(redis.RedisError, RedisClusterException):
                self.client  # noqa: B018 (it may raise ValueError)

    @cached_property
    def client(self) -> Any:
        """The redis-py client. A cluster's client connects when it is created; if that fails, a swap tries again."""
        client = self.connect()
        if self.replicas and isinstance(client, redis.RedisCluster):
            raise ValueError(
                f"replicas={self.replicas} with a cluster: WAIT can't be sent to the node that a key is on. Leave "
                "replicas out, or use one primary with replicas, such as with Sentinel"
            )
        return client

    def connect(self) -> Any:
        """Return the redis-py client. Override this for a cluster or for Sentinel, and keep the same time limits."""
        limits = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT, "retry": Retry(NoBackoff(), 0)}
        client = redis.Redis.from_url(self.url, **limits)
        # A swap needs bytes, even if the URL asks for text.
        client.connection_pool.connection_kwargs["decode_responses"] = False
        return client

    def swap(self, name: str, old: bytes | None, new: bytes | None, seconds: float) -> bytes | None:
        command = (self.prefix + name, old or b"", new or b"", max(1, round(seconds * 1000)))
        handled = sys.exception()
        try:
            try:
                return self._swap(*command)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if limit_in(error, handled) is not None:
                    raise
                # If the first try took effect after all, the second one finds `new`.
                return self._swap(*command)
        except BaseException as error:
            # redis-py treats a TimeoutError or OSError from a signal handler as if it were its own.
            limit = limit_in(error, handled)
            if limit is None and isinstance(error, redis.RedisError):
                raise
            # The exception may have struck before the server's reply was read. The next swap on the same connection
            # would read that reply instead of its own, so this client's connections are not used again.
            self.client = self.connect()
            if limit is None:
                raise
            raise limit from None

    def _swap(self, *command: Any) -> bytes | None:
        try:
            return self._sent(*command)
        except RedisClusterException as error:  # redis-py's only error that isn't a RedisError
            raise redis.ConnectionError(str(error)) from error

    def _sent(self, *command: Any) -> bytes | None:
        if not self.replicas:
            return self.client.eval(SWAP, 1, *command)  # type: ignore[no-any-return]
        pipeline = self.client.pipeline(transaction=False)  # one round trip for both commands
        current, confirmed = pipeline.eval(SWAP, 1, *command).wait(self.replicas, REPLICAS_TIMEOUT).execute()
        _, old, new, _ = command
        if confirmed < self.replicas and old != new and (current or b"") in (old, new):
            raise redis.RedisError(f"{confirmed} of {self.replicas} replicas confirmed the change in time")
        return current  # type: ignore[no-any-return]

    def check(self) -> Iterator[CheckMessage]:
        for name, server in self._servers():
            memory, persistence = server.info("memory"), server.info("persistence")
            if (policy := memory.get("maxmemory_policy")) != "noeviction":
                yield Warning(
                    f"{name} has maxmemory-policy {policy!r}. Once its memory is full, it drops keys before they "
                    "expire, and their retries run again.",
                    hint="Set maxmemory-policy noeviction: then new keys are refused with 503 instead.",
                    id="django_idempotency.W010",
                )
            if not persistence.get("aof_enabled"):
                yield Warning(
                    f"{name} has no append-only file. A restart forgets keys, and their retries run again.",
                    hint="Set appendonly yes; appendfsync always loses nothing, everysec up to a second or two.",
                    id="django_idempotency.W011",
                )

    def _servers(self) -> Iterator[tuple[str, Any]]:
        """Yield each server that stores keys, with a name for messages. In a cluster, each primary stores some keys."""
        client = self.client
        if not hasattr(client, "get_primaries"):
            yield "Redis", client
            return
        for node in client.get_primaries():
            yield f"Redis at {node.name}", client.get_redis_connection(node)
