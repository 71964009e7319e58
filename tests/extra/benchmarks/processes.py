"""Processes of this machine: which descend from which, their CPU time, and the core they run on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.db import connection


def postmaster() -> int:
    """The process of PostgreSQL that starts all its others. It runs on this machine."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return _parents()[cursor.fetchone()[0]]


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    parents = _parents()
    found = [pid]
    for one in found:  # grows meanwhile
        found += [child for child, parent in parents.items() if parent == one]
    return found


def child(program: str) -> int:
    """The one child of this process that runs the program."""
    (found,) = (
        pid
        for pid, parent in _parents().items()
        if parent == os.getpid() and program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return found


def cpu(pid: int) -> float:
    """The seconds of CPU that a family has used so far. Of its living members: none may end meanwhile."""
    seconds = 0.0
    for member in family(pid):
        with suppress(FileNotFoundError):
            seconds += sum(
                int(path.read_text().split()[0]) for path in Path(f"/proc/{member}/task").glob("*/schedstat")
            )
    return seconds / 1e9


@contextmanager
def on_core(core: int, pid: int = 0) -> Iterator[None]:
    """The family of the process, and what the family starts meanwhile, has this core only. 0: this process alone."""
    usual = os.sched_getaffinity(pid)
    _put(pid, {core})
    try:
        yield
    finally:
        _put(pid, usual)


def _put(pid: int, cores: set[int]) -> None:
    for member in family(pid) if pid else [0]:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(member, cores)


def _parents() -> dict[int, int]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # The name of the program stands in brackets, and may hold blanks.
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found
