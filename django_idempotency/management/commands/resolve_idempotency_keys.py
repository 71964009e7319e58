from __future__ import annotations

import getpass
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.db.models import Q

from ...engine.protocol.snapshots import Snapshot
from ...exceptions import IdempotencyConfigurationError, ResultNotStorable
from ...maintenance.bulk import resolve_all
from ...maintenance.lookups import find_key, half_done, in_doubt, needs_attention, refers_to, stuck, unchanged_for
from ...maintenance.resolution import close_with, record_outcome, release_for_retry
from ...models import IdempotencyKey, IdempotencyStep
from ..databases import known

if TYPE_CHECKING:
    from django.db.models import QuerySet

REFUSED = 3
"""Exit status. 1 is Django's for errors, 2 is argparse's."""
STATES: dict[str, Callable[..., QuerySet[IdempotencyKey]]] = {
    "stuck": stuck,
    "in-doubt": in_doubt,
    "half-done": half_done,
}
AS_IT_IS = ("X-Content-Type-Options", "nosniff")
"""As the admin's answers by hand: no browser takes a text for a page."""
SELECTORS = ("operation", "state", "older_than", "resource", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is to be decided about each key: a function of `maintenance.resolution`, and its arguments."""

    verb: str
    decision: Callable[..., None]
    args: tuple[Any, ...] = ()


class Command(BaseCommand):
    help = (
        "Decide about idempotency keys that need attention, as the admin does, in bulk and in scripts. Without --apply "
        "the keys are only listed. Each decision is kept with its key: who, when, why. Exit status: 0 done, 1 error, 3 "
        "a key was refused or passed over."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        chosen = parser.add_argument_group("which keys (at least one; all given ones must apply)")
        chosen.add_argument("--operation", action="append", help="Operation, such as 'POST pay/'. May be repeated.")
        chosen.add_argument("--state", action="append", choices=STATES, help="May be repeated. Default: all of them.")
        chosen.add_argument(
            "--older-than", type=float, metavar="S", help="Keys whose state has not changed for S seconds."
        )
        chosen.add_argument("--resource", help="What the operation is about: an id, or 'TYPE ID'.")
        chosen.add_argument("--key", action="append", help="A key, or its reference in the log. May be repeated.")
        chosen.add_argument("--database", help="Database alias. Default: the alias that keys are written to.")
        decision = parser.add_argument_group("the decision")
        one = decision.add_mutually_exclusive_group(required=True)
        one.add_argument(
            "--release",
            action="store_true",
            help="The next retry makes calls in doubt again. Only keys on retry, without a write in doubt.",
        )
        one.add_argument("--record", metavar="STEP=JSON", help="This result stands for the step in doubt of one key.")
        one.add_argument(
            "--close", type=int, metavar="STATUS", help="Retries get this status, 200 to 499, and nothing runs again."
        )
        decision.add_argument(
            "--calls-did-not-happen",
            action="store_true",
            help="With --release: also other keys. You have looked: what is in doubt did not take effect.",
        )
        decision.add_argument("--body", default="", help="With --close: the body, JSON or plain text.")
        decision.add_argument("--reason", required=True, help="Why, or the ticket. Kept with each key.")
        decision.add_argument("--by", help="Who decides. Default: the user of the operating system.")
        decision.add_argument("--apply", action="store_true", help="Decide. Without it, nothing is changed.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            choice = _choice(options)
            keys, passed_over = _selected(options)
            for key in keys:
                self.stdout.write(_line(key))
            if options["record"] is not None and len(keys) > 1:
                raise CommandError(f"--record: {len(keys)} keys are selected. A result belongs to one: add --key.")
            self._decide(choice, keys, passed_over, options)
        except (IdempotencyConfigurationError, ResultNotStorable, DatabaseError, ValueError) as error:
            raise CommandError(str(error)) from error

    def _decide(
        self, choice: Choice, keys: QuerySet[IdempotencyKey], passed_over: int, options: dict[str, Any]
    ) -> None:
        why = "because their policy is not retry, or a write is in doubt"
        held = f" Passed over, {why}: {passed_over}." if passed_over else ""
        if not options["apply"]:
            self.stdout.write(f"{choice.verb}: {keys.count()}. Nothing was changed: --apply is missing.{held}")
            return
        if not options["reason"].strip():
            raise CommandError("--reason is empty. Say why, or name the ticket.")
        by = options["by"] or _user()
        result = resolve_all(keys, choice.decision, *choice.args, by=by, reason=options["reason"])
        refused = f" Refused, because they had changed: {result.refused}." if result.refused else ""
        self.stdout.write(f"{choice.verb}: {result.resolved}.{refused}{held}")
        if result.refused or passed_over:
            raise CommandError("Some keys were not decided about.", returncode=REFUSED)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # a container may run under a number without a name
        raise CommandError("The operating system does not know your name. Say who decides: --by NAME.") from error


def _choice(options: dict[str, Any]) -> Choice:
    if options["release"]:
        return Choice(verb="Release", decision=release_for_retry)
    if options["record"] is not None:
        step, separator, text = options["record"].partition("=")
        if not separator:
            raise CommandError(f'--record {options["record"]!r}: write STEP=JSON, such as charge=\'{{"id": "ch_1"}}\'.')
        return Choice(verb="Record", decision=record_outcome, args=(step, _json(text)))
    body = options["body"]
    try:
        json.loads(body)
        media_type = "application/json"
    except ValueError:
        media_type = "text/plain; charset=utf-8"
    status = options["close"]
    if not 200 <= status < 500:
        raise CommandError(f"--close {status} is no final answer: give 200 to 499.")
    answer = Snapshot(status_code=status, headers=(("Content-Type", media_type), AS_IT_IS), body=body.encode())
    return Choice(verb="Close", decision=close_with, args=(answer,))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandError(f"--record: {text!r} is not JSON ({error}). Put a text in double quotes.") from error


def _selected(options: dict[str, Any]) -> tuple[QuerySet[IdempotencyKey], int]:
    """The keys to decide about, and how many more were selected but need a look first."""
    if all(options[name] is None for name in SELECTORS):
        raise CommandError("Choose the keys: --operation, --state, --older-than, --resource or --key.")
    using = known(options["database"])
    keys = needs_attention(using=using).order_by("pk")
    if options["operation"]:
        keys = keys.filter(operation__in=options["operation"])
    if options["resource"] is not None:
        keys = keys.filter(refers_to(options["resource"]))
    for found in _found(options, using):
        keys = keys.filter(found)
    if options["older_than"] is not None:
        keys = unchanged_for(keys, options["older_than"])
    if options["record"] is not None:
        step = options["record"].partition("=")[0]
        doubts = IdempotencyStep.objects.using(keys.db).filter(name=step, finished_at=None)
        keys = keys.filter(pk__in=doubts.values("key"))
    if not options["release"] or options["calls_did_not_happen"]:
        return keys, 0
    # The policy speaks of calls. A write in doubt is never repeated without a look.
    writes = IdempotencyStep.objects.using(keys.db).filter(kind=IdempotencyStep.Kind.WRITE, finished_at=None)
    free = keys.filter(policy=IdempotencyKey.Policy.RETRY).exclude(pk__in=writes.values("key"))
    return free, keys.count() - free.count()


def _found(options: dict[str, Any], using: str | None) -> list[Q]:
    """Conditions by state and by key: any of those that are given."""
    states = [STATES[name](using=using) for name in options["state"] or ()]
    named = [find_key(key, using=using) for key in options["key"] or ()]
    conditions = []
    for lists in (states, named):
        if lists:
            condition = Q(pk__in=[])
            for rows in lists:
                condition |= Q(pk__in=rows.order_by().values("pk"))
            conditions.append(condition)
    return conditions


def _line(key: IdempotencyKey) -> str:
    doubts = key.steps.filter(finished_at=None).order_by("pk").values_list("name", flat=True)
    about = f", about {key.resource_type} {key.resource_id}" if key.resource_type else ""
    return (
        f"{key.reference} {key.operation}: {key.status}, policy {key.policy or 'none'}, attempt {key.attempt}, "
        f"in doubt: {', '.join(doubts) or 'none'}{about}."
    )
