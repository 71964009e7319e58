"""How the benchmarks of keys in Redis begin: what they need, and what they ran on."""

from __future__ import annotations

import argparse
import os
import platform

import redis
from django import get_version
from django.db import connection

from tests.extra.benchmarks.redis_server import missing


def begun(description: str | None) -> bool:
    """Print the versions and the load of the machine; gives whether to run quickly. Ends if there is no Redis."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, whose figures mean nothing")
    quick: bool = parser.parse_args().quick
    if reason := missing():
        raise SystemExit(f"NOT RUN: {reason}. On Debian: apt install redis-server")
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = cursor.fetchone()[0]
    versions = f"PostgreSQL {version}, redis-py {redis.__version__}, Django {get_version()}"
    machine = f"Python {platform.python_version()}; {os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}"
    print(f"{versions}, {machine}\n", flush=True)
    return quick
