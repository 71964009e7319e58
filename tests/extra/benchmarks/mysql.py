"""A MySQL that is unpacked beside the system and lives as long as it is needed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.at_hand import temporary_folder

SCRIPT = Path(__file__).parents[2] / "mysql_server.sh"
# What a server does by default, where the server of the tests is faster.
DEFAULTS = ("--log-bin=binlog", "--innodb-flush-log-at-trx-commit=1", "--innodb-doublewrite=ON")


def missing() -> str:
    """What stands in the way; empty: nothing."""
    if not find_spec("MySQLdb"):
        return "mysqlclient is not installed (`tox run -e benchmarks-mariadb` does it)"
    return "" if _unpacked() else "Debian's newest suite cannot be unpacked here"


@contextmanager
def running() -> Iterator[str]:
    """In its default settings; gives its URL."""
    folder = _unpacked()
    assert folder is not None, "ask missing() first"
    command = ["bash", SCRIPT, "run", folder, *DEFAULTS, "bash", "-c", "echo $DATABASE_URL; cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


@cache
def _unpacked() -> Path | None:
    folder = Path(temporary_folder())
    return folder if subprocess.run(["bash", SCRIPT, "unpack", folder]).returncode == 0 else None
