from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial, reduce
from operator import or_
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import BigIntegerField, Q
from django.utils.timesince import timesince

from ...engine.protocol.error_text import without_controls
from ...engine.protocol.outcomes import Snapshot
from ...engine.stores import alias_for, store_for
from ...engine.stores.sealing import unsealed
from ...engine.stores.states import ATTENTION, IN_DOUBT, NEEDS_ATTENTION
from ...exceptions import NotDecryptable, NotResolvable
from ...keys import derived_key
from ...maintenance.earlier import earlier_results, unlike
from ...maintenance.entered import entered_answer
from ...maintenance.facts import Facts, facts_of
from ...maintenance.lookups import find_key, version_of, waiting_for, waits_since
from ...maintenance.resolution import close_with, refuse_unfinal, release_for_retry, resolve_all
from ...maintenance.sheet import Filled, read
from ...models import IdempotencyKey, IdempotencyStep
from ..base import NEED_ATTENTION, IdempotencyCommand, counted, several
from ..schemas import in_schema

CHOICES = {state.name.replace("_", "-"): state for state in ATTENTION}
REPEATED = ("operation", "state", "id")
SELECTORS = (*REPEATED, "key", "older_than")
LOOKED, SETTLED = "calls_did_not_happen", "finished_calls_are_settled"
"""The options with which a person confirms that they have asked the called service. Without them, the command skips the
keys that need such a confirmation.
"""
READABLE = "recorded_results_are_right"
LOOKED_HELP = (
    "Let --release also release keys without a lease, keys with a write in doubt, and keys that have a call in doubt "
    "and a policy other than retry. By passing this option, you confirm that you have checked the steps in doubt and "
    "that none of them had any effect."
)
SETTLED_HELP = (
    "Let --close also close keys whose calls have finished or are in doubt. By passing this option, you confirm "
    "that the order exists or that the customer has lost no money."
)
READABLE_HELP = (
    "Let --from-csv also record results whose shape differs from all earlier results of the same call. By passing this "
    "option, you confirm that the view can read them."
)
FILE_HELP = (
    "Read the decisions from a list that was exported from the admin. In the decision column, write 'release', "
    "'record' or a status. With 'record', also fill in the step and, as JSON, its result; with a status, put the body "
    "in the result column. Rows without a decision are skipped, and keys that have changed since the export are left "
    "alone."
)
SHOWN = 200
"""The maximum number of characters of a step's result that the command prints."""
DECIDE = "Decide with --release or --close; to record the result of a call, use --from-csv or the admin."
NOT_ALL = "Not all selected keys were decided."


class Command(IdempotencyCommand):
    help = (
        "List idempotency keys that need attention. To resolve them, add --apply and one of --release, --close or "
        "--from-csv. Each line starts with the number to pass to --id, and names the caller. With or without "
        "--apply, the exit status is 0 if everything is done, 1 after an error, and 3 if no key is selected, or if one "
        "is refused or skipped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument_group("which keys (all options must match)").add_argument
        add("--operation", action="append", help="Keys of this operation, such as 'POST pay/'. May be repeated.")
        add("--state", action="append", choices=CHOICES, help="Keys in this state; default: all. May be repeated.")
        add(
            "--older-than",
            type=float,
            metavar="S",
            help="Keys that have waited for S seconds.",
        )
        add("--key", help="The key itself, or the reference that the log shows for it. The key may be in any state.")
        add("--id", action="append", type=int, metavar="N", help="The key with this number. May be repeated.")
        add("--database", help="Database alias; default: the write alias.")
        add("--schema", help="A tenant's PostgreSQL schema; default: the connection's own.")
        decision = parser.add_argument_group("the decision (needs an option from above)")
        add = decision.add_mutually_exclusive_group().add_argument
        add("--release", action="store_true", help="Allow the next retry to repeat the calls that are in doubt.")
        add("--close", type=int, metavar="STATUS", help="Answer retries with this status, from 200 to 499.")
        add("--from-csv", metavar="FILE", help=FILE_HELP)
        add = decision.add_argument
        add("--calls-did-not-happen", action="store_true", help=LOOKED_HELP)
        add("--finished-calls-are-settled", action="store_true", help=SETTLED_HELP)
        add("--recorded-results-are-right", action="store_true", help=READABLE_HELP)
        add("--body", default="", help="The body for --close; JSON if it begins with {, [ or a double quote.")
        add("--reason", default="", help="The reason, or a ticket number. Required with --apply.")
        add("--by", default="", help="Who decides. Required with --apply.")
        add("--apply", action="store_true", help="Carry out the decision.")

    def handle(self, *args: Any, **options: Any) -> None:
        with in_schema(options["database"], options["schema"]):
            self._resolve(options)

    def _resolve(self, options: dict[str, Any]) -> None:
        options |= {name: several(options[name]) for name in REPEATED}
        action, selects = _action(options), any(options[name] is not None for name in SELECTORS)
        if options["from_csv"] is not None:
            self._from_csv(selects or bool(action or options["body"]), options)
            return
        answer = None
        if action == "answer":
            refuse_unfinal(options["close"], "--close")
            answer = entered_answer(options["close"], options["body"])
        if action and not selects:
            raise CommandError("Choose the keys: --operation, --state, --older-than, --key or --id.")
        keys, left = _selected(options), []
        for key in keys:
            why_not = _why_not(key, action, options)
            self.say(_line(key) + (f" Skipped: {why_not}." if why_not else ""))
            left += [] if why_not else [key.row]
        if missing := set(map(int, options["id"] or ())) - {key.row.pk for key in keys}:
            text = f"No key has the number {min(missing)}, or the other options exclude it."
            raise CommandError(text, returncode=NEED_ATTENTION)
        if selects and not keys:
            raise CommandError("No key is selected.", returncode=NEED_ATTENTION)
        if not action:
            advice = f" {DECIDE}" if any(key.idle for key in keys) else ""
            self.say(f"{counted(len(keys))}.{advice}")
            return
        if len(keys) > 1 and options["key"] is not None:
            raise CommandError(
                f"{len(keys)} keys are selected, perhaps from several callers or operations. Choose one by the number "
                f"at the start of its line, such as --id {keys[0].row.pk}."
            )
        if self._settle(answer, left, options) < len(keys):
            raise CommandError(NOT_ALL, returncode=NEED_ATTENTION)

    def _from_csv(self, twice: bool, options: dict[str, Any]) -> None:
        """Carry out the decisions in the file, but only after the whole file has been read and checked."""
        if twice:
            raise CommandError(
                "--from-csv: the file contains the keys, decisions and bodies. Leave out the options for them."
            )
        if not (rows := read(options["from_csv"], alias_for(options["database"]))):
            raise CommandError("No row of the file has a decision.", returncode=NEED_ATTENTION)
        key_of = {key.row.pk: key for key in _selected(options | {"id": [row.pk for row in rows]})}
        said, hint = ("Decided", "") if options["apply"] else ("Would decide", " Add --apply to do it.")
        keys = IdempotencyKey.objects.using(store_for(alias_for(options["database"])).alias)
        settled, earlier = 0, cache(partial(earlier_results, keys))
        for done, row in enumerate(rows, 1):
            key = key_of.get(row.pk)
            why_not = _refused(row, key, earlier, options)
            line = f"{row.pk} {row.seen[0]}:" if key is None else _line(key)
            result = f"Skipped: {why_not.removesuffix('.')}" if why_not else f"{said}: {row.what[:SHOWN]}"
            self.say(without_controls(f"{line} {result}."))
            self.show(done, len(rows))
            settled += not why_not
        self.say(f"{said} about {counted(settled)}.{hint}")
        if settled < len(rows):
            raise CommandError(NOT_ALL, returncode=NEED_ATTENTION)

    def _settle(self, answer: Snapshot | None, rows: list[IdempotencyKey], options: dict[str, Any]) -> int:
        """Close the keys with `answer`, or release them if it is None.

        Without `--apply`, only report what would be done. Returns how many keys were (or would be) resolved.
        """
        if answer is not None:
            body = f"this body: {answer.body.decode()}" if answer.body else "an empty body."
            self.say(f"Retries get {answer.status_code}, {answer.header('Content-Type')}, with {body}")
        verb, done = ("release", "Released") if answer is None else ("close", "Closed")
        if not options["apply"]:
            self.say(f"Would {verb} {counted(len(rows))}. Add --apply to do it.")
            return len(rows)
        said = {name: options[name] for name in ("by", "reason")}
        if answer is None:
            result = resolve_all(self._shown(rows), release_for_retry, confirmed=options[LOOKED], **said)
        else:
            result = resolve_all(self._shown(rows), close_with, answer, confirmed=options[SETTLED], **said)
        changed = f" Refused, because they had changed: {result.refused}." if result.refused else ""
        self.say(f"{done} {counted(result.resolved)}.{changed}")
        return result.resolved

    def _shown(self, rows: list[IdempotencyKey]) -> Iterator[IdempotencyKey]:
        for done, row in enumerate(rows, 1):
            yield row
            self.show(done, len(rows))


def _selected(options: dict[str, Any]) -> list[Facts]:
    """Return `Facts` about the selected keys. If an option is an empty list, no keys are selected."""
    keys = IdempotencyKey.objects.using(store_for(alias_for(options["database"])).alias)
    if options["key"] is not None:
        keys = find_key(options["key"], using=keys.db)
    if options["id"] is not None:
        numbers = [number for number in map(int, options["id"]) if abs(number) <= BigIntegerField.MAX_BIGINT]
        keys = keys.filter(pk__in=numbers)
    if options["key"] is None and options["id"] is None:
        keys = keys.filter(NEEDS_ATTENTION)
    if options["operation"] is not None:
        keys = keys.filter(operation__in=options["operation"])
    if options["state"] is not None:
        keys = keys.filter(reduce(or_, (CHOICES[name].condition for name in options["state"]), Q(pk__in=[])))
    if options["older_than"] is not None:
        keys = waiting_for(keys, options["older_than"])
    facts = facts_of(keys.order_by("pk").defer("headers", "body", "last_error"), results=True)
    # Keys in doubt come first, because the customer may have paid already.
    return sorted(facts, key=lambda key: key.state != IN_DOUBT)


def _why_not(key: Facts, action: str, options: dict[str, Any]) -> str:
    """Return the reason why the decision is not possible for this key, or an empty string."""
    if action and not key.idle:
        return "it is completed, or a worker holds it"
    word = LOOKED if action == "release" else SETTLED
    asks = key.needs_word(action) and not options[word]
    return f"ask the called service first, then add --{word.replace('_', '-')}" if asks else ""


def _refused(row: Filled, key: Facts | None, earlier: Callable[[str, str], list[str]], options: dict[str, Any]) -> str:
    """With --apply, carry out this row's decision. Return the reason for a refusal, or an empty string."""
    if key is None:
        return "it is gone"
    if row.seen != (key.row.reference, version_of(key.row)):
        return "it has changed since the export"
    if row.step and row.step not in key.recordable:
        return f"{row.step!r} is neither in doubt nor missing its value"
    if row.step and not options[READABLE]:
        differs = unlike(row.args[1], earlier(key.row.operation, row.step))
        if differs:
            return f"{differs}: check that the view can read it, then add --{READABLE.replace('_', '-')}"
    if (why_not := _why_not(key, row.action, options)) or not options["apply"]:
        return why_not
    try:
        word = options[LOOKED if row.action == "release" else SETTLED]
        row.settle(key.row, *row.args, by=options["by"], reason=options["reason"], confirmed=word)
    except (NotDecryptable, NotResolvable) as error:
        return str(error)
    return ""


def _line(key: Facts) -> str:
    row, done = key.row, [f"{step.name}={_result(key, step)}" for step in key.steps if step.finished_at is not None]
    doubts = "what the view has committed" if key.unleased else ", ".join(_doubt(key, step) for step in key.doubts)
    about = f", about {row.resource_type} {row.resource_id}" if row.resource_type else ""
    # A line break in the client's text could make part of it look like another key's line.
    return without_controls(
        f"{row.pk} {row.reference} {row.operation}, caller {row.scope!r}: {key.state.label} for "
        f"{timesince(waits_since(row), key.now)}, policy {row.policy or 'none'}, attempt {row.attempt}, worker "
        f"{row.worker or 'unknown'}, in doubt: {doubts or 'none'}, done: {', '.join(done) or 'none'}"
        f"{about}."
    )


def _doubt(key: Facts, step: IdempotencyStep) -> str:
    """Return the step's name, with its derived key if the view requested that key before each start of the call."""
    if step.kind != IdempotencyStep.Kind.CALL or not step.keyed:
        return str(step.name)
    row = key.row
    derived = derived_key(scope=row.scope, operation=row.operation, key=row.key, step=step.name)
    return f"{step.name} (derived key {derived})"


def _result(key: Facts, step: IdempotencyStep) -> str:
    text = unsealed(key.row, "result", step.result, step.name, instead="(cannot be decrypted)")
    return (text or "(not kept)")[:SHOWN]


def _action(options: dict[str, Any]) -> str:
    """Return "release", "answer", or "" if the keys are only listed.

    Raises `CommandError` if `--apply` is given without a decision, without `--by` or without `--reason`.
    """
    action = "release" if options["release"] else "" if options["close"] is None else "answer"
    if options["apply"] and not action and options["from_csv"] is None:
        raise CommandError("--apply needs a decision: add --release, --close or --from-csv.")
    if options["apply"] and not (options["by"].strip() and options["reason"].strip()):
        raise CommandError("--apply needs --by, which says who decides, and --reason, which says why.")
    return action
