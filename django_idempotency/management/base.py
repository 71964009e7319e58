"""This module has the base classes of the management commands. The base classes print texts safely, run a command on
several databases, and end a command after a signal.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connections, router
from django.db.models import QuerySet

from ..engine.conf import get_settings
from ..engine.protocol.error_text import without_controls
from ..engine.stores import alias_for, store_for
from ..exceptions import IdempotencyConfigurationError, IdempotencyError
from ..models import IdempotencyKey

NEED_ATTENTION = 3
"""The exit status if keys need attention. Django uses the status 1 for errors, and argparse uses 2."""
NO_ENGINE = "django.db.backends.dummy"
"""The engine of `"default": {}`. Django's documentation has this setting for projects without a default database."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
NAMED = 5
"""A line names at most this number of schemas."""
MOST = 100_000
"""A command counts at most this number of keys before it begins, to say how far it is."""
MOMENT = 1.0
"""Signals within this number of seconds are treated as one signal, because the program `timeout` sends its signal
twice: to the process, and then to the process group.
"""


def first_line(error: object) -> str:
    """Return only the first line of an error's text. The other lines can contain data of a row."""
    return without_controls(str(error).partition("\n")[0])


class IdempotencyCommand(BaseCommand):
    _began = 0.0
    _has_line = False

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command. If an option or the database causes an error, the error is printed without a traceback."""
        self._began = time.monotonic()
        try:
            return super().execute(*args, **options)
        except DatabaseError as error:
            raise CommandError(first_line(error)) from error
        except (IdempotencyError, ImportError, OSError, ValueError) as error:
            raise CommandError(str(error)) from error
        finally:
            self._clear()

    def total(self, rows: QuerySet[Any]) -> int:
        """Count the rows that a terminal is told of, up to `MOST`. Elsewhere nothing is counted."""
        return rows.values("pk")[:MOST].count() if self.stdout.isatty() else 0

    def show(self, done: int, total: int, name: str = "") -> None:
        """On a terminal, show how far the command is, in a line that the next text replaces."""
        if not self.stdout.isatty():
            return
        self._clear()
        of = f"at least {max(done, total):,}" if total >= MOST else f"{max(done, total):,}"
        rate = done / max(time.monotonic() - self._began, 0.001)
        self.stdout.write(f"{name}{done:,} of {of} keys, {rate:,.0f} a second", ending="")
        self.stdout.flush()
        self._has_line = True

    def _clear(self) -> None:
        if self._has_line:
            self.stdout.write("\r\x1b[K", ending="")
            self._has_line = False

    def say(self, text: str) -> None:
        """Print a text, and flush the output. Control characters are printed as escape sequences. Characters that the
        output cannot encode are also printed as escape sequences.

        The commands print names of operations and steps, and these names can contain any character. A command must not
        fail because of a character that cannot be printed.
        """
        self._clear()
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"  # for `io.StringIO`, the encoding is None
        lines = "\n".join(map(without_controls, text.split("\n")))
        self.stdout.write(lines.encode(encoding, "backslashreplace").decode(encoding))
        self.stdout.flush()  # without `flush()`, a pipe would show the text only after the end of the command


class DatabasesCommand(IdempotencyCommand):
    """This is the base class of all commands that can run on several databases. After a signal, the command finishes
    the current key or batch, and then ends.
    """

    def add_arguments(self, parser: CommandParser) -> None:
        either = parser.add_mutually_exclusive_group()
        some = "Database alias; default: the write alias. May be repeated."
        every = (
            "Every alias on which the database routers allow the key table. If an alias fails, the command goes on "
            "with the next one, and the exit status is 1."
        )
        either.add_argument("--database", action="append", help=some)
        either.add_argument("--all-databases", action="store_true", help=every)
        parser.add_argument("--dry-run", action="store_true", help="Change nothing, and say what would be done.")
        parser.add_argument("--max-seconds", type=float, metavar="S", help="Stop after S seconds for each database.")

    def handle(self, *args: Any, **options: Any) -> None:
        aliases, stop = _chosen(options), Event()
        failed = attention = 0
        with stoppable(stop) as received:
            for alias in aliases:
                name, self._began = f"{alias}: " if len(aliases) > 1 else "", time.monotonic()
                try:
                    line, needs_attention = self.run(alias, name, options, stop)
                except (CommandError, IdempotencyConfigurationError, DatabaseError) as error:
                    if not name:
                        raise
                    self.stderr.write(f"{name}{first_line(error)}")
                    failed += 1
                else:
                    attention += needs_attention
                    if options["verbosity"]:
                        self.say(name + line)
                        self._say_what_is_elsewhere(alias, name)
                if stop.is_set():
                    break
        if received:
            raise SystemExit(128 + received[0])
        if failed:
            raise CommandError(f"{failed} of {len(aliases)} databases failed.")
        if attention:
            where = get_settings().runbook_url or "the admin"
            raise CommandError(f"Idempotency keys need attention. See {where}.", returncode=NEED_ATTENTION)

    def _say_what_is_elsewhere(self, alias: str | None, name: str) -> None:
        """Beside a schema for each tenant, the keys of all tenants would stay for ever, and nobody would know."""
        if schemas := store_for(alias_for(alias)).elsewhere():
            command = type(self).__module__.rpartition(".")[2]
            named = ", ".join(schemas[:NAMED]) + (", …" if len(schemas) > NAMED else "")
            others = counted(len(schemas), "other schema")
            self.say(
                f"{name}Not looked at: the key tables in {others} ({named}). The command sees one schema. With "
                f"django-tenants, run `manage.py all_tenants_command {command}`."
            )

    def run(self, alias: str | None, name: str, options: dict[str, Any], stop: Event) -> tuple[str, bool]:
        """Do the work of the command on one database. Each printed line must begin with the text `name`.

        The method returns a text and a bool. The command prints the text after all other lines about this database. If
        the bool is True, the exit status of the command shows that keys need attention.
        """
        raise NotImplementedError


def counted(count: int, noun: str = "key") -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def several(given: Any) -> Any:
    """A command line can contain an option several times. Return a list of all values of the option. If the option was
    not given, return None.

    A project can also pass a single value with `call_command`, for example `operation="POST pay/"`. Then the list
    contains one value.
    """
    return [given] if isinstance(given, str | int) else given


def _chosen(options: dict[str, Any]) -> list[str | None]:
    """Return the database aliases on which the command must run. If no option names a database, the list is `[None]`.
    In this list, None stands for the alias to which the package writes keys.
    """
    if not options["all_databases"]:
        return list(dict.fromkeys(several(options["database"]) or [None]))
    real = [name for name in connections if connections[name].settings_dict["ENGINE"] != NO_ENGINE]
    allowed: list[str | None] = [name for name in real if router.allow_migrate_model(name, IdempotencyKey)]
    if not allowed:
        raise CommandError("DATABASE_ROUTERS allow the key table on no database. Let allow_migrate() return True.")
    return allowed


@contextmanager
def stoppable(stop: Event) -> Iterator[list[int]]:
    """Catch SIGTERM and SIGINT, so that the command can finish the current key or batch before the process ends.

    Perhaps the command hangs. So a second signal raises `SystemExit`. But if two signals arrive within `MOMENT`
    seconds, the later signal has no effect.
    """
    received: list[int] = []
    first = math.inf

    def note(number: int, frame: object) -> None:
        nonlocal first
        earlier = bool(received)
        received.append(number)
        if not earlier:
            first = time.monotonic()
            # Only the first signal calls `stop.set()`. When a second signal arrives, perhaps the first call of
            # `stop.set()` has not released its lock yet. A second call would then wait for this lock for ever.
            stop.set()
        elif time.monotonic() - first >= MOMENT:
            raise SystemExit(128 + number)

    try:
        previous = {number: signal.signal(number, note) for number in SIGNALS}
    except ValueError:
        yield received  # only the main thread can catch signals, so this function does nothing in other threads
        return
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
