"""A Citus cluster: a coordinator and two workers on the loopback device. Each of the three may serve the project.

`CITUS_PREFIX` is the folder of a PostgreSQL installation with the Citus extension (`pg_config --prefix`).
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.databases.clusters.postgresql import DATABASE, Server, make_folder

NODES = ("coordinator", "worker1", "worker2")
SETTINGS = {
    "shared_preload_libraries": "citus",
    "listen_addresses": "127.0.0.1",
    "citus.node_conninfo": "sslmode=disable",
    "citus.recover_2pc_interval": "1s",
    "wal_level": "logical",  # to move a schema
    "max_prepared_transactions": 200,
    "max_connections": 200,
}


def missing() -> str:
    """What the cluster needs and this machine has not."""
    prefix = os.environ.get("CITUS_PREFIX")
    if prefix is None:
        return "CITUS_PREFIX, the folder of a PostgreSQL with the Citus extension"
    extension = Path(prefix, "share", "postgresql", "extension", "citus.control")
    return "" if extension.exists() else str(extension)


class Cluster:
    def __init__(self, folder: Path) -> None:
        binaries = Path(os.environ["CITUS_PREFIX"], "bin")
        self.nodes = {name: Server(folder / name, binaries=binaries, port=_free_port()) for name in NODES}
        self.coordinator = self.nodes["coordinator"]

    def start(self) -> None:
        """Start three nodes, and make an empty database on all of them: new schemas there are distributed."""
        for node in self.nodes.values():
            node.initialize()
            node.start(**SETTINGS)
        self.make_database(DATABASE)
        self.distribute_schemas(DATABASE)

    def make_database(self, name: str) -> None:
        """An empty database on nodes that know each other."""
        for node in self.nodes.values():
            node.execute(f"CREATE DATABASE {name}", "postgres")
            node.execute("CREATE EXTENSION citus", name)
        self.coordinator.execute(f"SELECT citus_set_coordinator_host('127.0.0.1', {self.coordinator.port})", name)
        for node in list(self.nodes.values())[1:]:
            self.coordinator.execute(f"SELECT citus_add_node('127.0.0.1', {node.port})", name)

    def distribute_schemas(self, name: str) -> None:
        self.coordinator.execute(f"ALTER DATABASE {name} SET citus.enable_schema_based_sharding = on", "postgres")

    def node_of(self, schema: str) -> str:
        """The name of the node that has this schema."""
        placement = f"SELECT nodeport FROM citus_shards WHERE table_name::text LIKE '{schema}.%' LIMIT 1"
        [(port,)] = self.coordinator.execute(placement)
        return next(name for name, node in self.nodes.items() if node.port == port)

    def orders(self) -> Counter[str]:
        """How many orders each reference has, in all schemas."""
        schemas = [row[0] for row in self.coordinator.execute("SELECT schema_name::text FROM citus_schemas")]
        union = " UNION ALL ".join(f"SELECT reference FROM {schema}.shopapp_order" for schema in schemas)
        return Counter(row[0] for row in self.coordinator.execute(union))

    def settings(self, node: str, schema: str) -> dict[str, Any]:
        """The entry of `DATABASES` for a tenant's schema, as this node serves it."""
        return {**self.nodes[node].settings(), "OPTIONS": {"options": f"-c search_path={schema}"}}

    def url(self, node: str, schema: str) -> str:
        """The `DATABASE_URL` of the tests' own project, for a tenant's schema."""
        server = self.nodes[node]
        return f"postgres://postgres@127.0.0.1:{server.port}/postgres?options=-c%20search_path%3D{schema}"

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop()


@contextmanager
def citus() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="idempotency-citus-"))
    make_folder(folder)
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
