"""Strikes on each database at hand, PostgreSQL first: `tox run -e interrupts`. Arguments go to pytest."""

from __future__ import annotations

import os
import subprocess
import sys

from tests import mariadb_server

COMMAND = (sys.executable, "-m", "pytest", "-p", "no:randomly", "tests/interrupts/strikes")
NO_BACKENDS = ("-k", "not torn_key_in_a_backend")
"""Once is enough for keys that are not in a database."""


def strike(*arguments: str, **environment: str) -> bool:
    """Run the tests, and return whether they passed."""
    print(f"=== {environment.get('DATABASE_URL', 'PostgreSQL')}", flush=True)
    return subprocess.run([*COMMAND, *arguments], env={**os.environ, **environment}).returncode == 0


def main(*arguments: str) -> int:
    if "DATABASE_URL" in os.environ:
        return not strike(*arguments)
    passed = [strike(*arguments), strike(*NO_BACKENDS, *arguments, DATABASE_URL="sqlite:///:memory:")]
    if missing := mariadb_server.missing():
        print(f"NOT RUN: MariaDB, because this is missing: {missing}")
    else:
        with mariadb_server.mariadb() as settings:
            url = f"mysql://root@localhost/{settings['NAME']}?unix_socket={settings['OPTIONS']['unix_socket']}"
            passed.append(strike(*NO_BACKENDS, *arguments, DATABASE_URL=url))
    return not all(passed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
