"""What the commands share: output that harms nothing, and a run over several databases that a signal can end."""

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

from ..engine.conf import get_settings
from ..engine.protocol.error_text import without_controls
from ..exceptions import IdempotencyConfigurationError, IdempotencyError
from ..models import IdempotencyKey

NEED_ATTENTION = 3
"""Exit status. 1 is Django's for errors, 2 is argparse's."""
NO_ENGINE = "django.db.backends.dummy"
"""That of `"default": {}`, which Django advises where each app has an alias of its own."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
MOMENT = 1.0
"""Seconds. Signals within it are one wish: `timeout` of GNU sends its signal to the process, and then to its group."""


class IdempotencyCommand(BaseCommand):
    def execute(self, *args: Any, **options: Any) -> str | None:
        """An error of the options or of the database is told without a traceback."""
        try:
            return super().execute(*args, **options)
        except DatabaseError as error:  # the lines after the first one may quote a row
            raise CommandError(without_controls(str(error).partition("\n")[0])) from error
        except (IdempotencyError, ImportError, ValueError) as error:
            raise CommandError(str(error)) from error

    def say(self, text: str) -> None:
        """Print at once, and as an escape what the output's encoding lacks, or what a terminal obeys.

        Operations, steps and errors, which commands quote, may hold any character. None may harm a run.
        """
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"  # that of io.StringIO is None
        lines = "\n".join(map(without_controls, text.split("\n")))
        self.stdout.write(lines.encode(encoding, "backslashreplace").decode(encoding))
        self.stdout.flush()  # a pipe would hold the line back until the end


class DatabasesCommand(IdempotencyCommand):
    """Works on databases one after the other. A signal ends the run when the key or batch at hand is done."""

    def add_arguments(self, parser: CommandParser) -> None:
        either = parser.add_mutually_exclusive_group()
        some = "Database alias; default: the write alias. May be repeated."
        every = (
            "Every alias on which the database routers allow the key table. If an alias fails, the command goes on "
            "with the next one, and the exit status is 1."
        )
        either.add_argument("--database", action="append", help=some)
        either.add_argument("--all-databases", action="store_true", help=every)
        parser.add_argument("--dry-run", action="store_true", help="Only say what would be done.")
        parser.add_argument("--max-seconds", type=float, metavar="S", help="Stop after S seconds for each database.")

    def handle(self, *args: Any, **options: Any) -> None:
        aliases, stop = _chosen(options), Event()
        failed = attention = 0
        with stoppable(stop) as received:
            for alias in aliases:
                name = f"{alias}: " if len(aliases) > 1 else ""
                try:
                    line, needs_attention = self.run(alias, name, options, stop)
                except (CommandError, IdempotencyConfigurationError, DatabaseError) as error:
                    if not name:
                        raise
                    self.stderr.write(without_controls(f"{name}{error}".partition("\n")[0]))
                    failed += 1
                else:
                    attention += needs_attention
                    if options["verbosity"]:
                        self.say(name + line)
                if stop.is_set():
                    break
        if received:
            raise SystemExit(128 + received[0])
        if failed:
            raise CommandError(f"{failed} of {len(aliases)} databases failed.")
        if attention:
            where = get_settings().runbook_url or "the admin"
            raise CommandError(f"Idempotency keys need attention. See {where}.", returncode=NEED_ATTENTION)

    def run(self, alias: str | None, name: str, options: dict[str, Any], stop: Event) -> tuple[str, bool]:
        """Work on one database. `name` begins each line that is printed.

        Returns the last line, for cron's mail, and whether the exit status says that keys need attention.
        """
        raise NotImplementedError


def counted(count: int, noun: str = "key") -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def several(given: Any) -> Any:
    """The values of an option that may be repeated, as a list; None: not given.

    `call_command(…, key="abc")` gives the value itself.
    """
    return [given] if isinstance(given, str | int) else given


def _chosen(options: dict[str, Any]) -> list[str | None]:
    """The aliases that the command was given. None is the one that keys are written to."""
    if not options["all_databases"]:
        return list(dict.fromkeys(several(options["database"]) or [None]))
    real = [name for name in connections if connections[name].settings_dict["ENGINE"] != NO_ENGINE]
    allowed: list[str | None] = [name for name in real if router.allow_migrate_model(name, IdempotencyKey)]
    if not allowed:
        raise CommandError("DATABASE_ROUTERS allow the key table on no database. Let allow_migrate() return True.")
    return allowed


@contextmanager
def stoppable(stop: Event) -> Iterator[list[int]]:
    """Collect signals, so that what is running is finished before the process ends.

    A signal that comes a `MOMENT` later raises `SystemExit` in what is running, which may hang.
    """
    received: list[int] = []
    first = math.inf

    def note(number: int, frame: object) -> None:
        nonlocal first
        earlier = bool(received)
        received.append(number)
        if not earlier:
            first = time.monotonic()
            # A second signal can interrupt `set()`, which holds a lock: a second `set()` would wait for it for ever.
            stop.set()
        elif time.monotonic() - first >= MOMENT:
            raise SystemExit(128 + number)

    try:
        previous = {number: signal.signal(number, note) for number in SIGNALS}
    except ValueError:
        yield received  # not the main thread: signals are the business of the program that called us
        return
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
