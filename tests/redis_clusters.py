"""Redis clusters with real servers, and the backend for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_idempotency.backends.redis import TIMEOUT, RedisBackend
from tests.backends import free_port, redis_server
from tests.servers import eventually

HIGHEST_PORT = 55535
"""A node's other port is 10,000 higher."""


class ClusterBackend(RedisBackend):
    """For a cluster, with the same time limits. Its connections end with the cluster."""

    clients: list[redis.RedisCluster] = []

    def connect(self) -> Any:
        limits: dict[str, Any] = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
        client = redis.RedisCluster.from_url(self.url, retry=Retry(NoBackoff(), 0), **limits)
        self.clients.append(client)
        return client


@contextmanager
def redis_cluster(*nodes: tuple[str, ...], port: int | None = None) -> Iterator[str]:
    """A cluster with a primary for each of these tuples of options; gives the URL of the first one, on this port."""
    with ExitStack() as stack:
        urls = []
        for options in nodes:
            server = redis_server("--cluster-enabled", "yes", *options, port=port or free_port(HIGHEST_PORT))
            urls.append(stack.enter_context(server)[0])
            port = None
        clients = [stack.enter_context(redis.Redis.from_url(url)) for url in urls]
        edges = [16384 * number // len(nodes) for number in range(len(nodes) + 1)]
        for client, first, end in zip(clients, edges[:-1], edges[1:], strict=True):
            client.execute_command(f"CLUSTER ADDSLOTSRANGE {first} {end - 1}")
            client.execute_command(f"CLUSTER MEET 127.0.0.1 {urls[0].rpartition(':')[2]}")

        def agree() -> bool:
            told = [client.execute_command("CLUSTER INFO") for client in clients]
            return all((t["cluster_state"], t["cluster_size"]) == ("ok", str(len(nodes))) for t in told)

        eventually("the cluster", agree)
        try:
            yield urls[0]
        finally:
            while ClusterBackend.clients:
                ClusterBackend.clients.pop().disconnect_connection_pools()  # `close` leaves them open
