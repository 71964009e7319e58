from __future__ import annotations

from importlib import import_module
from threading import Event
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...maintenance.lookups import needs_attention, unchanged_for
from ...maintenance.recovery import OLDER_THAN, Asked, recover_idempotency_keys
from ..base import DatabasesCommand, counted, several


class Command(DatabasesCommand):
    help = (
        "Call reconcile for each idempotency key that needs attention, since its client may never retry. Run this from "
        "cron. On a terminal or with --verbosity 2, it prints a summary and a line for each key that it processes. "
        "Otherwise, only keys that still need attention get a line. The exit status is 0 if no key needs attention, 3 "
        "if any does (even one younger than --older-than), 1 if the command or reconcile failed, and 128 plus the "
        "signal's number if a signal ended the run."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        age = "Only keys that have not changed for S seconds (%(default)s)."
        default = OLDER_THAN.total_seconds()
        parser.add_argument("--older-than", type=float, default=default, metavar="S", help=age)
        operation = "Only keys of this operation, such as 'POST orders/'. May be repeated."
        parser.add_argument("--operation", action="append", default=[], help=operation)
        module = "Import this module first, so that the command finds its functions. May be repeated."
        parser.add_argument("--import", action="append", default=[], dest="modules", metavar="MODULE", help=module)

    def run(self, alias: str | None, name: str, options: dict[str, Any], stop: Event) -> tuple[str, bool]:
        for module in several(options["modules"]):
            import_module(module)

        done = 0

        def progress(asked: Asked) -> None:
            nonlocal done
            done += asked.keys
            settled = asked.outcome in ("completed", "passed") and not self.stdout.isatty()
            if options["verbosity"] > settled:
                self.say(f"{name}{asked}")
                self.show(done, total, name)

        limits = {name: options[name] for name in ("older_than", "max_seconds", "dry_run")}
        limits["operations"] = several(options["operation"])
        keys = needs_attention(using=alias)
        keys = keys.filter(operation__in=limits["operations"]) if limits["operations"] else keys
        total = self.total(unchanged_for(keys, options["older_than"]))
        result = recover_idempotency_keys(using=alias, stop=stop, progress=progress, **limits)
        sentences = [] if options["dry_run"] else [f"Completed {counted(result.completed, 'idempotency key')}."]
        if not result.complete:
            sentences.append("Stopped early: more may be left.")
        young = f", and {result.young} younger than {options['older_than']:g} seconds" if result.young else ""
        line = " ".join([*sentences, f"Need attention: {result.left}{young}."])
        if result.failed:
            raise CommandError(f"{name}{line} reconcile raised for {counted(result.failed)}; see the log.")
        return line, result.left + result.young > 0
