from __future__ import annotations

from importlib import import_module
from threading import Event
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...engine.stores import alias_for
from ...maintenance.recovery import OLDER_THAN, Asked, Recovered, recover_idempotency_keys
from ...models import IdempotencyKey
from ..base import DatabasesCommand, chosen, counted, several


class Command(DatabasesCommand[Recovered]):
    help = (
        "Ask reconcile about each idempotency key that needs attention, in the place of a client that does not come "
        "back: complete the key, record what took effect, or leave the key and say why. For cron. Prints one line for "
        "each key. Exit status: 0 nothing is left, 1 error or a reconcile raised, 3 keys are left that need attention, "
        "128 plus the signal's number if stopped by a signal."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--older-than",
            type=float,
            default=OLDER_THAN.total_seconds(),
            metavar="S",
            help="Only keys whose state has not changed for S seconds (%(default)s): the client's retries come first.",
        )
        operation = "Only keys of this operation, such as 'POST orders/'. May be repeated."
        parser.add_argument("--operation", action="append", default=[], help=operation)
        parser.add_argument("--limit", type=int, metavar="N", help="Ask about N keys of each database at most.")
        parser.add_argument("--urlconf", help="Dotted path of the URLconf of the views. Default: ROOT_URLCONF.")
        module = "Import this module first, so that its functions with @once are found. May be repeated."
        parser.add_argument("--import", action="append", default=[], dest="modules", metavar="MODULE", help=module)

    def run(self, alias: str | None, name: str, options: dict[str, Any], stop: Event) -> Recovered:
        for module in several(options["modules"]):
            if module.startswith("."):
                raise CommandError(f"--import {module!r}: write the whole name of the module, such as 'shop.tasks'.")
            import_module(module)

        limits = {name: options[name] for name in ("older_than", "limit", "max_seconds", "dry_run", "urlconf")}
        operations = several(options["operation"])

        def progress(asked: Asked) -> None:
            self.tell(f"{name}{asked}", bool(options["verbosity"]))

        return recover_idempotency_keys(using=alias, operations=operations, stop=stop, progress=progress, **limits)

    def needs_attention(self, results: list[Recovered], options: dict[str, Any]) -> bool:
        tables = [IdempotencyKey.objects.using(alias_for(alias)) for alias in chosen(options)]
        for operation in several(options["operation"]) if options["verbosity"] else ():
            # Else a typing error would look as if no key needed attention.
            if not any(keys.filter(operation=operation).exists() for keys in tables):
                self.stderr.write(f"No key has the operation {operation!r}.")
        if failed := sum(result.failed for result in results):
            raise CommandError(f"reconcile raised for {counted(failed, 'idempotency key')}; see the log.")
        return any(result.left for result in results)

    def described(self, result: Recovered, *, dry_run: bool) -> str:
        sentences = [] if dry_run else [f"Completed {counted(result.completed, 'idempotency key')}."]
        if not result.complete:
            sentences.append("Stopped early: more may be left.")
        return " ".join([*sentences, f"Need attention: {result.left}."])
