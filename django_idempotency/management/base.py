"""What the management commands share: safe output, handling several databases, and a clean shutdown after a signal."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from threading import Event
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connections, router
from django.db.models import QuerySet

from ..engine.protocol.error_text import without_controls
from ..engine.stores import alias_for, store_for
from ..exceptions import IdempotencyConfigurationError, IdempotencyError
from ..models import IdempotencyKey
from .schemas import all_schemas, in_schema

NEED_ATTENTION = 3
"""The exit status if keys need attention. 1 is Django's status for errors, 2 is argparse's."""
NO_ENGINE = "django.db.backends.dummy"
"""The engine of `"default": {}`, which Django documents for projects without a default database."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
NAMED = 5
"""The maximum number of schemas that a line lists."""
MOST = 100_000
"""The maximum number of keys that a command counts before it starts, to show its progress."""
MOMENT = 1.0
"""Signals within this many seconds count as one, because `timeout` sends its signal twice: to the process, and to its
process group.
"""


def first_line(error: object) -> str:
    """The first line of an error. The other lines can contain a row's data."""
    return without_controls(str(error).partition("\n")[0])


class IdempotencyCommand(BaseCommand):
    _began = 0.0
    _has_line = False

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Print option errors and database errors without a traceback."""
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
        """Count the rows, up to `MOST`, if the output is a terminal. Otherwise, return 0 without counting."""
        return rows.values("pk")[:MOST].count() if self.stdout.isatty() else 0

    def show(self, done: int, total: int, name: str = "") -> None:
        """On a terminal, show progress on a line that the next output overwrites."""
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
        """Print the text immediately, escaping control characters and any character that the output cannot encode.

        The names of operations and steps can contain any character, and some would otherwise make a command fail.
        """
        self._clear()
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"  # None for `io.StringIO`
        lines = "\n".join(map(without_controls, text.split("\n")))
        self.stdout.write(lines.encode(encoding, "backslashreplace").decode(encoding))
        self.stdout.flush()  # otherwise, it would reach a pipe only at the end


class DatabasesCommand(IdempotencyCommand):
    """A command for several databases. After a signal, it finishes the current key or batch and then exits."""

    def add_arguments(self, parser: CommandParser) -> None:
        either = parser.add_mutually_exclusive_group()
        some = "Database alias; default: the write alias. May be repeated."
        every = (
            "Every alias on which the database routers allow the key table. If one fails, the command goes on with the "
            "next, and the exit status is 1."
        )
        either.add_argument("--database", action="append", help=some)
        either.add_argument("--all-databases", action="store_true", help=every)
        either = parser.add_mutually_exclusive_group()
        some = "A tenant's PostgreSQL schema; default: the connection's own. May be repeated."
        every = "Every schema that has a key table; with django-tenants, the tenants' schemas and the shared one."
        either.add_argument("--schema", action="append", help=some)
        either.add_argument("--all-schemas", action="store_true", help=every)
        parser.add_argument("--dry-run", action="store_true", help="Make no changes; only report what would be done.")
        limit = "Stop after S seconds on each database, or in each schema."
        parser.add_argument("--max-seconds", type=float, metavar="S", help=limit)

    def handle(self, *args: Any, **options: Any) -> None:
        stop, attention = Event(), 0
        chosen, unreached = self._places(options)
        failed = unreached

        def run() -> None:
            nonlocal failed, attention
            for alias, schema in chosen:
                needs_attention = self._run(alias, schema, len(chosen) > 1, options, stop)
                failed += needs_attention is None
                attention += bool(needs_attention)
                if stop.is_set():
                    break

        if received := stoppable(stop, run):
            raise SystemExit(128 + received[0])
        if failed:
            what = "databases" if all(schema is None for _, schema in chosen) else "schemas"
            raise CommandError(f"{failed} of {len(chosen) + unreached} {what} failed.")
        if attention:
            raise CommandError("Idempotency keys need attention. See the admin.", returncode=NEED_ATTENTION)

    def _places(self, options: dict[str, Any]) -> tuple[list[tuple[str | None, str | None]], int]:
        """Return pairs of an alias and a schema (None is the connection's own), and how many databases failed."""
        aliases, places, failed = _chosen(options), list[tuple[str | None, str | None]](), 0
        for alias in aliases:
            schemas: list[Any] = several(options["schema"]) or [None]
            try:
                schemas = (all_schemas(alias) or [None]) if options["all_schemas"] else schemas
            except DatabaseError as error:
                if len(aliases) == 1:
                    raise
                self.stderr.write(f"{alias}: {first_line(error)}")
                failed += 1
                continue
            places += [(alias, schema) for schema in schemas]
        return places, failed

    def _run(
        self, alias: str | None, schema: str | None, one_of_several: bool, options: dict[str, Any], stop: Event
    ) -> bool | None:
        """Return whether keys need attention. If this database or schema failed, and is one of several, return None."""
        place = ": ".join(filter(None, (alias, schema)))
        name, self._began = f"{place}: " if one_of_several else "", time.monotonic()
        try:
            with in_schema(alias, schema):
                line, needs_attention = self.run(alias, name, options, stop)
        except (CommandError, IdempotencyConfigurationError, DatabaseError) as error:
            if not name:
                raise
            self.stderr.write(f"{name}{first_line(error)}")
            return None
        if options["verbosity"]:
            self.say(name + line)
            if schema is None:
                self._say_what_is_elsewhere(alias, name)
        return needs_attention

    def _say_what_is_elsewhere(self, alias: str | None, name: str) -> None:
        """List the other schemas that contain key tables. Otherwise, their tenants' keys would go unnoticed."""
        if schemas := store_for(alias_for(alias)).elsewhere():
            named = ", ".join(schemas[:NAMED]) + (", …" if len(schemas) > NAMED else "")
            others = counted(len(schemas), "other schema")
            self.say(
                f"{name}Not looked at: the key tables in {others} ({named}). Add --all-schemas, or --schema for some "
                "of them."
            )

    def run(self, alias: str | None, name: str, options: dict[str, Any], stop: Event) -> tuple[str, bool]:
        """Work on one database, and begin each printed line with `name`.

        Returns the last line about this database, and whether the exit status must report that keys need attention.
        """
        raise NotImplementedError


def counted(count: int, noun: str = "key") -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def several(given: Any) -> Any:
    """Return the values of a repeatable option as a list, or None if it was not given.

    `call_command` may pass a single value, such as `operation="POST pay/"`.
    """
    return [given] if isinstance(given, str | int) else given


def _chosen(options: dict[str, Any]) -> list[str | None]:
    """The aliases to work on. None stands for the alias to which the package writes keys."""
    if not options["all_databases"]:
        return list(dict.fromkeys(several(options["database"]) or [None]))
    real = [name for name in connections if connections[name].settings_dict["ENGINE"] != NO_ENGINE]
    allowed: list[str | None] = [name for name in real if router.allow_migrate_model(name, IdempotencyKey)]
    if not allowed:
        raise CommandError("DATABASE_ROUTERS allow the key table on no database. Let allow_migrate() return True.")
    return allowed


def stoppable(stop: Event, run: Callable[[], object]) -> list[int]:
    """Call `run`, and set `stop` at SIGTERM or SIGINT, so that it can finish the current key or batch.

    In case `run` hangs, a second signal raises `SystemExit`, unless it comes within `MOMENT` seconds of the first.

    This isn't a context manager: if another signal's handler raised an exception at the first line of `__exit__`, the
    handlers that were set here would stay installed.

    Returns:
        The signals that arrived.
    """
    received: list[int] = []
    first = math.inf

    def note(number: int, frame: object) -> None:
        nonlocal first
        earlier = bool(received)
        received.append(number)
        if not earlier:
            first = time.monotonic()
            # `set` is called only once. Another signal could interrupt this call. If its handler called `set` again, it
            # would wait forever for a lock that this call still holds.
            stop.set()
        elif time.monotonic() - first >= MOMENT:
            raise SystemExit(128 + number)

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    if threading.current_thread() is not threading.main_thread():
        run()  # only the main thread can catch signals
        return received
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        try:
            for number in SIGNALS:
                signal.signal(number, note)
            run()
        finally:
            restore()
    finally:  # again, in case another signal's handler has raised before or during the first `restore`
        restore()
    return received
