"""Strikes on each database at hand, PostgreSQL first: `tox run -e interrupts`. Arguments go to pytest.

`INTERRUPTS_ON=mariadb,mysql` chooses among the databases. With DATABASE_URL, there is only that one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec

from tests import mariadb_server

COMMAND = (sys.executable, "-m", "pytest", "-p", "no:randomly", "tests/interrupts/strikes")
MYSQL = ("bash", "tests/mysql_server.sh")


def strike(*arguments: str, server: tuple[str, ...] = (), **environment: str) -> bool:
    """Run the tests, and return whether they passed."""
    settings = " ".join(f"{name}={value}" for name, value in environment.items())
    print("===", settings or ("MySQL" if server else "PostgreSQL"), flush=True)
    return subprocess.run([*server, *COMMAND, *arguments], env={**os.environ, **environment}).returncode == 0


def not_run(what: str, why: str) -> bool:
    print(f"NOT RUN: {what}, because {why}", flush=True)
    return True


def postgresql(*arguments: str) -> bool:
    return strike(*arguments)


def psycopg2(*arguments: str) -> bool:
    if find_spec("psycopg2") is None:
        return not_run("psycopg2", "it is not installed")
    return strike(*arguments, POSTGRESQL_DRIVER="psycopg2")


def sqlite(*arguments: str) -> bool:
    return strike(*arguments, DATABASE_URL="sqlite:///:memory:")


def mariadb(*arguments: str) -> bool:
    if missing := mariadb_server.missing():
        return not_run("MariaDB", f"this is missing: {missing}")
    with mariadb_server.mariadb() as settings:
        return strike(*arguments, DATABASE_URL=mariadb_server.url(settings))


def mysql(*arguments: str) -> bool:
    if not mariadb_server.has_driver():
        return not_run("MySQL", "its driver is not installed")
    with tempfile.TemporaryDirectory() as folder:
        unpacked = subprocess.run([*MYSQL, "unpack", folder], capture_output=True, text=True)
        if unpacked.returncode:
            return not_run("MySQL", f"it is not to be had here: {unpacked.stderr.strip()[-200:]}")
        return strike(*arguments, server=(*MYSQL, "run", folder))


DATABASES: tuple[Callable[..., bool], ...] = (postgresql, psycopg2, sqlite, mariadb, mysql)


def main(*arguments: str) -> int:
    if "DATABASE_URL" in os.environ:
        return not strike(*arguments)
    chosen = os.environ.get("INTERRUPTS_ON", ",".join(run.__name__ for run in DATABASES)).split(",")
    if unknown := set(chosen) - {run.__name__ for run in DATABASES}:
        sys.exit(f"INTERRUPTS_ON: there is no {', '.join(sorted(unknown))}")
    passed = [run(*arguments) for run in DATABASES if run.__name__ in chosen]  # the others, too, after a failure
    return not all(passed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
