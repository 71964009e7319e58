from __future__ import annotations

from importlib import import_module
from threading import Event
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from ...engine.stores import alias_for
from ...exceptions import IdempotencyConfigurationError
from ...maintenance.recovery import OLDER_THAN, Asked, Recovered, recover_idempotency_keys
from ...models import IdempotencyKey
from .. import databases
from ..output import EscapingCommand
from ..repeated import several
from ..stopping import SIGNALS, stoppable

NEED_ATTENTION = 3
"""Exit status. 1 is Django's for errors, 2 is argparse's."""


class Command(EscapingCommand):
    help = (
        "Ask reconcile about each idempotency key that needs attention, in the place of a client that does not come "
        "back: complete the key, record what took effect, or leave the key and say why. For cron. Prints one line for "
        "each key. Exit status: 0 nothing is left, 1 error or a reconcile raised, 3 keys are left that need attention, "
        "128 plus the signal's number if stopped by a signal."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        databases.add_arguments(parser)
        parser.add_argument(
            "--older-than",
            type=float,
            default=OLDER_THAN.total_seconds(),
            metavar="S",
            help="Only keys whose state has not changed for S seconds (%(default)s): the client's retries come first.",
        )
        parser.add_argument(
            "--operation",
            action="append",
            default=[],
            help="Only keys of this operation, such as 'POST orders/'. May be repeated.",
        )
        parser.add_argument("--limit", type=int, metavar="N", help="Ask about N keys of each database at most.")
        parser.add_argument(
            "--max-seconds", type=float, metavar="S", help="Stop after S seconds for each database, between two keys."
        )
        parser.add_argument("--dry-run", action="store_true", help="Only say what would be asked about which key.")
        parser.add_argument("--urlconf", help="Dotted path of the URLconf of the views. Default: ROOT_URLCONF.")
        parser.add_argument(
            "--import",
            action="append",
            default=[],
            dest="modules",
            metavar="MODULE",
            help="Import this module first, so that its functions with @once are found. May be repeated.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        aliases = databases.chosen(options)
        options["operation"], options["modules"] = several(options["operation"]), several(options["modules"])
        stop = Event()
        results: list[Recovered] = []
        with stoppable(stop, () if options["dry_run"] else SIGNALS) as received:
            _import(options["modules"])
            for alias in aliases:
                result = self._recover_or_report(alias, options, stop, alone=len(aliases) == 1)
                if result is not None:
                    results.append(result)
                if stop.is_set():
                    break
        if received:
            raise SystemExit(128 + received[0])
        if len(results) < len(aliases):
            raise CommandError(f"{len(aliases) - len(results)} of {len(aliases)} databases failed.")
        if options["verbosity"]:
            self._tell_of_unknown(options["operation"], aliases)
        if failed := sum(result.failed for result in results):
            raise CommandError(f"reconcile raised for {failed} idempotency keys; see the log.")
        if any(result.left for result in results):
            raise CommandError("Idempotency keys need attention; see the admin.", returncode=NEED_ATTENTION)

    def _recover_or_report(
        self, alias: str | None, options: dict[str, Any], stop: Event, *, alone: bool
    ) -> Recovered | None:
        """Recover one database and say so. None: the error was reported, so that the other databases are recovered."""
        name = "" if alone else f"{alias}: "
        try:
            result = self._recover(alias, options, stop, name)
        except (IdempotencyConfigurationError, DatabaseError) as error:
            if alone:
                raise CommandError(str(error)) from error
            self.stderr.write(f"{name}{error}")
            return None
        except (ImportError, ValueError) as error:
            raise CommandError(str(error)) from error
        if options["verbosity"]:
            self.stdout.write(name + _described(result, dry_run=options["dry_run"]))
        return result

    def _recover(self, alias: str | None, options: dict[str, Any], stop: Event, name: str) -> Recovered:
        def progress(asked: Asked) -> None:
            if options["verbosity"]:
                self.stdout.write(f"{name}{asked}")
                self.stdout.flush()  # a pipe would hold the line back until the end

        return recover_idempotency_keys(
            using=alias,
            older_than=options["older_than"],
            operations=options["operation"],
            limit=options["limit"],
            max_seconds=options["max_seconds"],
            dry_run=options["dry_run"],
            urlconf=options["urlconf"],
            stop=stop,
            progress=progress,
        )

    def _tell_of_unknown(self, operations: list[str], aliases: list[str | None]) -> None:
        """Else a typing error would look as if no key needed attention."""
        tables = [IdempotencyKey.objects.using(alias_for(alias)) for alias in aliases]
        for operation in operations:
            if not any(keys.filter(operation=operation).exists() for keys in tables):
                self.stderr.write(f"No key has the operation {operation!r}.")


def _import(modules: list[str]) -> None:
    for module in modules:
        if module.startswith("."):
            raise CommandError(f"--import {module!r}: write the whole name of the module, such as 'shop.tasks'.")
        try:
            import_module(module)
        except (ImportError, ValueError) as error:
            raise CommandError(str(error)) from error


def _described(result: Recovered, *, dry_run: bool) -> str:
    """The last line, for cron's mail."""
    sentences = (
        [] if dry_run else [f"Completed {result.completed} idempotency key{'' if result.completed == 1 else 's'}."]
    )
    if not result.complete:
        sentences.append("Stopped early: more may be left.")
    sentences.append(f"Need attention: {result.left}.")
    return " ".join(sentences)
