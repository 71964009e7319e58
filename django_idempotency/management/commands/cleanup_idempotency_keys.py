from __future__ import annotations

from threading import Event
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from ...exceptions import IdempotencyConfigurationError
from ...maintenance.cleanup import BATCH_SIZE, Cleanup, cleanup_idempotency_keys, preview
from .. import databases
from ..output import EscapingCommand
from ..stopping import SIGNALS, stoppable

NEED_ATTENTION = 3
"""Exit status. 1 is Django's for errors, 2 is argparse's."""


class Command(EscapingCommand):
    help = (
        "Delete expired idempotency keys in batches, each in a short transaction of its own. For cron. "
        "Exit status: 0 done (or stopped by a limit), 1 error, 3 with --fail-on-stuck if keys need attention, 128 plus "
        "the signal's number if stopped by a signal."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        databases.add_arguments(parser)
        parser.add_argument(
            "--batch-size", type=int, default=BATCH_SIZE, metavar="ROWS", help="Rows per transaction (%(default)s)."
        )
        parser.add_argument("--max-batches", type=int, metavar="N", help="Stop after N batches of each database.")
        parser.add_argument(
            "--max-seconds", type=float, metavar="S", help="Stop after S seconds for each database, at a batch's end."
        )
        parser.add_argument(
            "--pause", type=float, default=0, metavar="S", help="Rest S seconds between two batches (%(default)s)."
        )
        parser.add_argument("--dry-run", action="store_true", help="Only say how many keys have expired.")
        parser.add_argument(
            "--fail-on-stuck",
            action="store_true",
            help="Exit with status 3 if there are keys that are stuck, in doubt or half done.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        aliases = databases.chosen(options)
        stop = Event()
        results: list[Cleanup] = []
        with stoppable(stop, () if options["dry_run"] else SIGNALS) as received:
            for alias in aliases:
                result = self._clean_up_or_report(alias, options, stop, alone=len(aliases) == 1)
                if result is not None:
                    results.append(result)
                if stop.is_set():
                    break
        if received:
            raise SystemExit(128 + received[0])
        if len(results) < len(aliases):
            raise CommandError(f"{len(aliases) - len(results)} of {len(aliases)} databases failed.")
        if options["fail_on_stuck"] and any(map(_needs_attention, results)):
            raise CommandError("Idempotency keys need attention; see the admin.", returncode=NEED_ATTENTION)

    def _clean_up_or_report(
        self, alias: str | None, options: dict[str, Any], stop: Event, *, alone: bool
    ) -> Cleanup | None:
        """Clean one database up and say so. None: the error was reported, so that the other databases are cleaned."""
        try:
            result = preview(alias) if options["dry_run"] else self._cleanup(alias, options, stop)
        except (IdempotencyConfigurationError, DatabaseError) as error:
            if alone:
                raise CommandError(str(error)) from error
            self.stderr.write(f"{alias}: {error}")
            return None
        except ValueError as error:
            raise CommandError(str(error)) from error
        if options["verbosity"]:
            described = _described(result, dry_run=options["dry_run"])
            self.stdout.write(described if alone else f"{alias}: {described}")
        return result

    def _cleanup(self, alias: str | None, options: dict[str, Any], stop: Event) -> Cleanup:
        shown = options["verbosity"] > 1 or (options["verbosity"] == 1 and self.stdout.isatty())

        def progress(deleted: int) -> None:
            if shown:
                self.stdout.write(f"{deleted} deleted ...")
                self.stdout.flush()  # a pipe would hold the line back until the end

        return cleanup_idempotency_keys(
            using=alias,
            batch_size=options["batch_size"],
            max_batches=options["max_batches"],
            max_seconds=options["max_seconds"],
            pause=options["pause"],
            stop=stop,
            progress=progress,
        )


def _needs_attention(result: Cleanup) -> bool:
    return bool(result.stuck or result.in_doubt or result.half_done)


def _described(result: Cleanup, *, dry_run: bool) -> str:
    """One line for cron's mail."""
    if dry_run:
        sentences = [f"{result.deleted} expired idempotency keys."]
        if result.given_up:
            sentences.append(f"To be given up, because UNSETTLED_TTL is over: {result.given_up}.")
        if result.unstuck:
            sentences.append(f"To be failed, because their workers died before any call: {result.unstuck}.")
    else:
        sentences = [f"Deleted {result.deleted} expired idempotency key{'' if result.deleted == 1 else 's'}."]
        if result.given_up:
            sentences.append(f"Given up, because UNSETTLED_TTL is over: {result.given_up}.")
        if result.unstuck:
            sentences.append(f"Failed, because their workers died before any call: {result.unstuck}.")
        if not result.complete:
            sentences.append("Stopped early: more are left.")
    if result.stuck:
        sentences.append(f"Stuck, because no worker holds them: {result.stuck}.")
    if result.in_doubt:
        sentences.append(f"With an external call in doubt: {result.in_doubt}.")
    if result.half_done:
        sentences.append(f"Half done, because a call is finished and the operation is not: {result.half_done}.")
    return " ".join(sentences)
