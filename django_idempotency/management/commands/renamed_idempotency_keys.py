from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...engine.stores import alias_for
from ...maintenance.renamed import sent_to_two_operations, unknown_operations
from ...models import IdempotencyKey
from ..base import NEED_ATTENTION, IdempotencyCommand, counted


class Command(IdempotencyCommand):
    help = (
        "List the keys that one caller has sent to two operations, the first of which no endpoint has any more: after "
        "a route or an operation was renamed, a retry has run again under the new name, and the customer may have "
        "paid twice. Each line shows both rows with the numbers to search for in the admin. Nothing is changed. The "
        "exit status is 0 if there are none, 1 after an error, and 3 if keys are listed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        named = (
            "The old name, such as 'POST pay/'; default: each name in the stored keys that no endpoint has now. May be "
            "repeated. Needed once the old route is back."
        )
        parser.add_argument("--operation", action="append", metavar="NAME", help=named)
        parser.add_argument("--database", help="Database alias; default: the write alias.")

    def handle(self, *args: Any, **options: Any) -> None:
        alias = alias_for(options["database"])
        names = options["operation"] or unknown_operations(using=alias)
        if not names:
            self.say("Every stored operation has its endpoint. To look at one of them, pass its old name: --operation.")
            return
        count = 0
        for old, new in sent_to_two_operations(names, using=alias):
            count += 1
            self.say(f"{old.reference} of {old.scope}: {_shown(old)}; {_shown(new)}")
        self.say(f"{counted(count)} of {', '.join(map(repr, names))} also ran under another operation.")
        if count:
            raise CommandError("Undo one order and refund one charge of each.", returncode=NEED_ATTENTION)


def _shown(row: IdempotencyKey) -> str:
    about = f", {row.resource_type} {row.resource_id}" if row.resource_id else ""
    return f"{row.operation!r} {row.status} (id {row.pk}, {row.created_at:%Y-%m-%d %H:%M:%S}{about})"
