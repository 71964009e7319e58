from __future__ import annotations

from threading import Event
from typing import Any

from django.core.management.base import CommandParser

from ...engine.stores import alias_for, store_for
from ...engine.stores.states import EXPIRED
from ...maintenance.cleanup import BATCH_SIZE, Cleanup, cleanup_idempotency_keys, preview
from ...models import IdempotencyKey
from ..base import DatabasesCommand, counted


class Command(DatabasesCommand):
    help = (
        "Delete expired idempotency keys in short transactions. Run this from cron. The exit status is 0 if the "
        "cleanup is done or has reached a limit, 1 after an error, 3 if --fail-on-stuck is given and keys need "
        "attention, and 128 plus the signal's number if a signal ended the run."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        rows = "Rows per transaction (%(default)s)."
        parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, metavar="ROWS", help=rows)
        parser.add_argument("--pause", type=float, default=0, metavar="S", help="Wait S seconds between two batches.")
        attention = "Exit with status 3 if keys are stuck, in doubt or half done."
        parser.add_argument("--fail-on-stuck", action="store_true", help=attention)

    def run(self, alias: str | None, name: str, options: dict[str, Any], stop: Event) -> tuple[str, bool]:
        def progress(deleted: int) -> None:
            if options["verbosity"] > 1:
                self.say(f"{name}{deleted} deleted ...")
            if options["verbosity"]:
                self.show(deleted, total, name)

        keys = IdempotencyKey.objects.using(store_for(alias_for(alias)).alias)
        total = 0 if options["dry_run"] else self.total(keys.filter(EXPIRED.condition).order_by(*EXPIRED.order))

        limits = {name: options[name] for name in ("batch_size", "max_seconds", "pause")}
        if options["dry_run"]:
            result = preview(alias)
        else:
            result = cleanup_idempotency_keys(using=alias, stop=stop, progress=progress, **limits)
        needs_attention = bool(result.stuck or result.in_doubt or result.half_done)
        return _described(result, options["dry_run"]), needs_attention and options["fail_on_stuck"]


def _described(result: Cleanup, dry_run: bool) -> str:
    deleted, freed = ("Would delete", "Would free") if dry_run else ("Deleted", "Freed")
    sentences = [f"{deleted} {counted(result.deleted, 'expired idempotency key')}."]
    if result.unstuck:
        sentences.append(f"{freed} {counted(result.unstuck)} for retry: their workers died before any call.")
    if not (result.complete or dry_run):
        sentences.append("Stopped early: more are left.")
    attention = {
        "Stuck, because no worker holds them": result.stuck,
        "In doubt, because it is unknown what took effect": result.in_doubt,
        "Half done, because a call has finished and the operation has not": result.half_done,
    }
    return " ".join([*sentences, *(f"{why}: {count}." for why, count in attention.items() if count)])
