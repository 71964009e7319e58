from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q, QuerySet
from django.utils.timesince import timesince

from ...engine.protocol.error_text import without_controls
from ...engine.stores import alias_for, store_for
from ...engine.stores.sealing import unseal
from ...engine.stores.states import ATTENTION, NEEDS_ATTENTION, UNDECIDED
from ...exceptions import NotDecryptable
from ...maintenance.entered import answer_of, json_value, result_of
from ...maintenance.facts import Facts, facts_of
from ...maintenance.lookups import find_key, refers_to, unchanged_for
from ...maintenance.resolution import close_with, record_outcome, release_for_retry, resolve_all
from ...models import IdempotencyKey, IdempotencyStep
from ..base import IdempotencyCommand, counted, several

REFUSED = 3
"""Exit status. 1 is Django's for errors, 2 is argparse's."""
STATES = {state.name.replace("_", "-"): state for state in ATTENTION}
REPEATED = ("operation", "state", "key", "id")
SELECTORS = (*REPEATED, "older_than", "resource")
Rows = QuerySet[IdempotencyKey]
LOOKED, SETTLED = "calls-did-not-happen", "finished-calls-are-settled"
LOOKED_HELP = (
    "With --release: also keys whose policy is not retry, or with a write in doubt. You have looked: what is in doubt "
    "did not take effect."
)
SETTLED_HELP = "With --close: also keys with finished calls. You have looked: the order exists, or the money went back."
RECORD = (
    "This result stands for the step in doubt of one key; of a step that returns a model instance, "
    '\'{"model": "shop.Order", "pk": 59}\'. With --key or --id, it also replaces a result that a person has recorded.'
)
SHOWN = 200
"""Characters of the result of a step."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be decided about each key: a function of `maintenance.resolution`, and its words.

    Attributes:
        decision, args: the function, and what it needs beside the key. None: the keys are listed only.
        action: as in the trail of decisions.
        word: the option by which a person says what was found outside. Without it, keys that need it are passed over.
        step: the step that a result is recorded for.
    """

    decision: Callable[..., None] | None = None
    args: tuple[Any, ...] = ()
    action: str = ""
    word: str = ""
    step: str | None = None


class Command(IdempotencyCommand):
    help = (
        "List idempotency keys that need attention, and decide about them, as the admin does, in bulk and in scripts. "
        "Without --release, --record or --close the keys are listed. With one of them, what would be decided is said; "
        "with --apply too, exactly the listed keys are decided about. Each line begins with the number of the key's "
        "row, for --id, and names the caller. Each decision is kept with its key: who, when, why. Exit status, also "
        "without --apply: 0 done, 1 error, 3 a key was refused or passed over, or the options select nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        chosen = parser.add_argument_group("which keys (all given options must apply)")
        chosen.add_argument("--operation", action="append", help="Operation, such as 'POST pay/'. May be repeated.")
        chosen.add_argument("--state", action="append", choices=STATES, help="May be repeated. Default: all of them.")
        chosen.add_argument("--older-than", type=float, metavar="S", help="Unchanged for at least S seconds.")
        chosen.add_argument("--resource", help="What the operation is about: an id, or 'TYPE ID'.")
        chosen.add_argument("--key", action="append", help="A key, or its reference in the log. May be repeated.")
        chosen.add_argument("--id", action="append", type=int, metavar="N", help="Number of a row. May be repeated.")
        chosen.add_argument("--database", help="Database alias. Default: the alias that keys are written to.")
        decision = parser.add_argument_group("the decision (needs an option that selects keys)")
        one = decision.add_mutually_exclusive_group()
        one.add_argument("--release", action="store_true", help="The next retry makes calls in doubt again.")
        one.add_argument("--record", metavar="STEP=JSON", help=RECORD)
        one.add_argument("--close", type=int, metavar="STATUS", help="Retries get this status, 200 to 499.")
        decision.add_argument(f"--{LOOKED}", action="store_true", help=LOOKED_HELP)
        decision.add_argument(f"--{SETTLED}", action="store_true", help=SETTLED_HELP)
        decision.add_argument(
            "--body", default="", help="With --close. JSON, if it begins with {, [ or a double quote."
        )
        decision.add_argument("--reason", default="", help="Why, or the ticket. Kept with each key.")
        decision.add_argument("--by", default="", help="Who decides. Kept with each key.")
        decision.add_argument("--apply", action="store_true", help="Decide. Without it, nothing is changed.")

    def handle(self, *args: Any, **options: Any) -> None:
        options |= {name: several(options[name]) for name in REPEATED}
        choice = _choice(options)
        rows = IdempotencyKey.objects.using(store_for(alias_for(options["database"])).alias)
        names = _names(rows, options)
        keys = _chosen(rows, options, choice, names)
        confirmed = not choice.word or options[choice.word.replace("-", "_")]
        passed_over = [] if confirmed else [key for key in keys if key.needs_word(choice.action)]
        for key in keys:
            self.say(_line(key) + (" Passed over." if key in passed_over else ""))
        missed = [name for name, ids in names.items() if not ids & {key.row.pk for key in keys}]
        for name in missed:
            found = [_line(key) for key in facts_of(rows.filter(pk__in=names[name]).order_by("pk"), results=True)]
            self.say("\n".join(f"{name} selects nothing. {line}" for line in found or ["There is no such key."]))
        for answer in choice.args if choice.action == "answer" else ():
            body = f"this body: {answer.body.decode()}" if answer.body else "an empty body."
            self.say(f"Retries get {answer.status_code}, {answer.header('Content-Type')}, with {body}")
        if not keys and (choice.decision or _selects(options)):
            raise CommandError("No key is selected.", returncode=REFUSED)
        left, refused = [key.row for key in keys if key not in passed_over], 0
        if choice.decision is None:
            done = f"{counted(len(keys))}. Decide by --release, --record or --close."
        else:
            _refuse_several(keys, names, choice)
            done = f"Would decide about {counted(len(left))}. Add --apply to do it."
        if choice.decision is not None and options["apply"]:
            said = {"by": options["by"], "reason": options["reason"], "confirmed": confirmed}
            result = resolve_all(left, choice.decision, *choice.args, **said)
            refused = result.refused
            done = f"Decided about {counted(result.resolved)}."
        done += f" Refused, because they had changed: {refused}." if refused else ""
        if passed_over:
            done += f" Passed over: {len(passed_over)}. Look outside first, then add --{choice.word}."
        self.say(done)
        if refused or passed_over or missed:
            raise CommandError("Not all keys that were named are decided about.", returncode=REFUSED)


def _names(rows: Rows, options: dict[str, Any]) -> dict[str, set[int]]:
    """The rows under each value of --key and --id."""
    found = {f"--key {key!r}": find_key(key, using=rows.db) for key in options["key"] or ()}
    found |= {f"--id {id_}": rows.filter(pk=id_) for id_ in options["id"] or ()}
    return {name: set(keys.values_list("pk", flat=True)) for name, keys in found.items()}


def _chosen(rows: Rows, options: dict[str, Any], choice: Choice, names: dict[str, set[int]]) -> list[Facts]:
    """The keys that the options select, as they are now. One that is named may need no attention, as in the admin."""
    keys = rows.filter(UNDECIDED if names else NEEDS_ATTENTION).order_by("pk").defer("headers", "body", "last_error")
    # An option that is given as an empty list selects nothing, and not everything.
    for option in ("key", "id"):
        if options[option] is not None:
            given = [ids for name, ids in names.items() if name.startswith(f"--{option}")]
            keys = keys.filter(pk__in=set().union(*given))
    if options["operation"] is not None:
        keys = keys.filter(operation__in=options["operation"])
    if options["resource"] is not None:
        keys = keys.filter(refers_to(options["resource"]))
    if options["state"] is not None:
        keys = keys.filter(reduce(or_, (STATES[name].condition for name in options["state"]), Q(pk__in=[])))
    if options["older_than"] is not None:
        keys = unchanged_for(keys, options["older_than"])
    facts = facts_of(keys, results=True)
    if choice.step is None:
        return facts
    # A script that runs twice must not replace what a person has found out: only of a named key.
    return [key for key in facts if choice.step in (key.recordable if names else key.in_doubt)]


def _refuse_several(keys: list[Facts], names: dict[str, set[int]], choice: Choice) -> None:
    for name, ids in names.items():
        if len(mine := [key.row.pk for key in keys if key.row.pk in ids]) > 1:
            raise CommandError(
                f"{name} selects {len(mine)} keys, of several callers or operations. Choose by the number at the "
                f"beginning of the line, such as --id {mine[0]}."
            )
    if choice.step is not None and len(keys) > 1:
        raise CommandError(f"--record: {len(keys)} keys are selected. A result belongs to one: add --id.")


def _line(key: Facts) -> str:
    row, done = key.row, [f"{step.name}={_result(key, step)}" for step in key.steps if step.finished_at is not None]
    about = f", about {row.resource_type} {row.resource_id}" if row.resource_type else ""
    return without_controls(  # a client may have chosen a text that looks like another line
        f"{row.pk} {row.reference} {row.operation}, caller {row.scope!r}: {key.state.label} for "
        f"{timesince(row.updated_at, key.now)}, policy {row.policy or 'none'}, attempt {row.attempt}, worker "
        f"{row.worker or 'unknown'}, in doubt: {', '.join(key.in_doubt) or 'none'}, done: {', '.join(done) or 'none'}"
        f"{about}."
    )


def _result(key: Facts, step: IdempotencyStep) -> str:
    try:
        return (unseal(key.row, "result", step.result, step.name) or "(not kept)")[:SHOWN]
    except NotDecryptable:
        return "(cannot be decrypted)"


def _selects(options: dict[str, Any]) -> bool:
    return any(options[name] is not None for name in SELECTORS)


def _choice(options: dict[str, Any]) -> Choice:
    """What the options ask for. Raises `CommandError` and `ValueError` for what cannot work."""
    choice = Choice()
    if options["release"]:
        choice = Choice(release_for_retry, action="release", word=LOOKED)
    elif options["record"] is not None:
        step, separator, text = options["record"].partition("=")
        if not separator:
            raise CommandError(f'--record {options["record"]!r}: write STEP=JSON, such as charge=\'{{"id": "ch_1"}}\'.')
        choice = Choice(record_outcome, (step, result_of(json_value(text))), action="record", step=step)
    elif options["close"] is not None:
        status, body = options["close"], options["body"]
        if not 200 <= status < 500:
            raise CommandError(f"--close {status} is no final answer: give 200 to 499.")
        content_type = "application/json" if body.lstrip().startswith(("{", "[", '"')) else "text/plain; charset=utf-8"
        choice = Choice(close_with, (answer_of(status, content_type, body),), action="answer", word=SETTLED)
    if choice.decision is None and options["apply"]:
        raise CommandError("--apply: say what to decide, by --release, --record or --close.")
    if choice.decision is not None and not _selects(options):
        raise CommandError("Choose the keys: --operation, --state, --older-than, --resource, --key or --id.")
    for name, missing in (("by", "Say who decides."), ("reason", "Say why, or name the ticket.")):
        if options["apply"] and not options[name].strip():
            raise CommandError(f"--{name} is missing. {missing}")
    return choice
