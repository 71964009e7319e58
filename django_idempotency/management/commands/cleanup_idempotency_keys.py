from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connections

from ...exceptions import IdempotencyConfigurationError
from ...maintenance.cleanup import BATCH_SIZE, Cleanup, cleanup_idempotency_keys, preview

NEED_ATTENTION = 3
"""Exit status. 1 is Django's for errors, 2 is argparse's."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Command(BaseCommand):
    help = (
        "Delete expired idempotency keys in batches, each in a short transaction of its own. For cron. "
        "Exit status: 0 done (or stopped by a limit), 1 error, 3 with --fail-on-stuck if keys need attention, 128 plus "
        "the signal's number if stopped by a signal."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", help="Database alias. Default: the alias that keys are written to.")
        parser.add_argument(
            "--batch-size", type=int, default=BATCH_SIZE, metavar="ROWS", help="Rows per transaction (%(default)s)."
        )
        parser.add_argument("--max-batches", type=int, metavar="N", help="Stop after N batches.")
        parser.add_argument("--max-seconds", type=float, metavar="S", help="Stop after S seconds, at a batch's end.")
        parser.add_argument(
            "--pause", type=float, default=0, metavar="S", help="Rest S seconds between two batches (%(default)s)."
        )
        parser.add_argument("--dry-run", action="store_true", help="Only say how many keys have expired.")
        parser.add_argument(
            "--fail-on-stuck",
            action="store_true",
            help="Exit with status 3 if there are keys whose lease is over or whose external call is in doubt.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        alias = options["database"]
        if alias is not None and alias not in connections:
            raise CommandError(f"There is no database {alias!r}. Known are: {', '.join(connections)}.")
        stop = Event()
        try:
            if options["dry_run"]:
                result, received = preview(alias), []
            else:
                with _stoppable(stop) as received:
                    result = self._cleanup(options, stop)
        except (ValueError, IdempotencyConfigurationError, DatabaseError) as error:
            raise CommandError(str(error)) from error
        if options["verbosity"]:
            self.stdout.write(_described(result, dry_run=options["dry_run"]))
        if received:
            raise SystemExit(128 + received[0])
        if options["fail_on_stuck"] and (result.stuck or result.in_doubt):
            raise CommandError("Idempotency keys need attention; see the admin.", returncode=NEED_ATTENTION)

    def _cleanup(self, options: dict[str, Any], stop: Event) -> Cleanup:
        shown = options["verbosity"] > 1 or (options["verbosity"] == 1 and self.stdout.isatty())

        def progress(deleted: int) -> None:
            if shown:
                self.stdout.write(f"{deleted} deleted …")
                self.stdout.flush()  # a pipe would hold the line back until the end

        return cleanup_idempotency_keys(
            using=options["database"],
            batch_size=options["batch_size"],
            max_batches=options["max_batches"],
            max_seconds=options["max_seconds"],
            pause=options["pause"],
            stop=stop,
            progress=progress,
        )


def _described(result: Cleanup, *, dry_run: bool) -> str:
    """One line for cron's mail."""
    if dry_run:
        sentences = [f"{result.deleted} expired idempotency keys."]
    else:
        sentences = [f"Deleted {result.deleted} expired idempotency key{'' if result.deleted == 1 else 's'}."]
        if not result.complete:
            sentences.append("Stopped early: more are left.")
    if result.stuck:
        sentences.append(f"Stuck, because their lease is over: {result.stuck}.")
    if result.in_doubt:
        sentences.append(f"With an external call in doubt: {result.in_doubt}.")
    return " ".join(sentences)


@contextmanager
def _stoppable(stop: Event) -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT, so that the running batch is finished before the process ends."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        received.append(number)
        stop.set()

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
