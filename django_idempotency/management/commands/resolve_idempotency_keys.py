from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser
from django.db.models import BigIntegerField, Q
from django.utils.timesince import timesince

from ...engine.protocol.error_text import without_controls
from ...engine.protocol.outcomes import Snapshot
from ...engine.stores import alias_for, store_for
from ...engine.stores.sealing import unseal
from ...engine.stores.states import ATTENTION, IN_DOUBT, NEEDS_ATTENTION
from ...exceptions import NotDecryptable
from ...maintenance.entered import answer_of
from ...maintenance.facts import Facts, facts_of
from ...maintenance.lookups import find_key, unchanged_for
from ...maintenance.resolution import close_with, release_for_retry, resolve_all
from ...models import IdempotencyKey, IdempotencyStep
from ..base import NEED_ATTENTION, IdempotencyCommand, counted, several

STATES = {state.name.replace("_", "-"): state for state in ATTENTION}
REPEATED = ("operation", "state", "id")
SELECTORS = (*REPEATED, "key", "older_than")
LOOKED, SETTLED = "calls-did-not-happen", "finished-calls-are-settled"
LOOKED_HELP = (
    "With --release: also release keys whose policy is not retry, or with a write in doubt. You say that you have "
    "looked, and that what is in doubt did not take effect."
)
SETTLED_HELP = (
    "With --close: also close keys with finished calls. You say that you have looked, and that the order exists or the "
    "money went back."
)
SHOWN = 200
"""Characters of the result of a step."""


class Choice(NamedTuple):
    """What is to be decided about each key: a function of `maintenance.resolution`, and its words.

    Attributes:
        decision, args: the function, and what it needs beside the key.
        action: as in the trail of decisions.
        word: the option by which a person says what was found outside. Without it, keys that need it are passed over.
        confirmed: whether that option was given.
    """

    decision: Callable[..., None]
    args: tuple[Snapshot, ...]
    action: str
    word: str
    confirmed: bool


class Command(IdempotencyCommand):
    help = (
        "List idempotency keys that need attention. Decide about exactly the listed keys with --release or --close, "
        "and with --apply. Each line begins with the number for --id, and names the caller. Exit status, also "
        "without --apply: 0 done, 1 error, 3 a key was refused or passed over, or no key is selected."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        chosen = parser.add_argument_group("which keys (all given options must apply)")
        chosen.add_argument("--operation", action="append", help="Such as 'POST pay/'. May be repeated.")
        chosen.add_argument("--state", action="append", choices=STATES, help="May be repeated. Default: all.")
        chosen.add_argument("--older-than", type=float, metavar="S", help="Unchanged for at least S seconds.")
        chosen.add_argument("--key", help="A key or its reference in the log, also without need of attention.")
        chosen.add_argument(
            "--id", action="append", type=int, metavar="N", help="The number of a row. May be repeated."
        )
        chosen.add_argument("--database", help="Database alias; default: the write alias.")
        decision = parser.add_argument_group("the decision (needs an option that selects keys)")
        one = decision.add_mutually_exclusive_group()
        one.add_argument("--release", action="store_true", help="Let the next retry make calls in doubt again.")
        one.add_argument("--close", type=int, metavar="STATUS", help="Answer retries with this status, 200 to 499.")
        decision.add_argument(f"--{LOOKED}", action="store_true", help=LOOKED_HELP)
        decision.add_argument(f"--{SETTLED}", action="store_true", help=SETTLED_HELP)
        decision.add_argument("--body", default="", help="With --close. JSON if it begins with {, [ or a double quote.")
        decision.add_argument("--reason", default="", help="Why, or the ticket.")
        decision.add_argument("--by", default="", help="Who decides.")
        decision.add_argument("--apply", action="store_true", help="Carry the decision out.")

    def handle(self, *args: Any, **options: Any) -> None:
        options |= {name: several(options[name]) for name in REPEATED}
        choice, selects = _choice(options), any(options[name] is not None for name in SELECTORS)
        if choice is not None and not selects:
            raise CommandError("Choose the keys: --operation, --state, --older-than, --key or --id.")
        keys, left = _selected(options), []
        for key in keys:
            why_not = "" if choice is None else _why_not(key, choice)
            self.say(_line(key) + (f" Passed over: {why_not}." if why_not else ""))
            left += [] if why_not else [key.row]
        if missing := set(map(int, options["id"] or ())) - {key.row.pk for key in keys}:
            text = f"There is no row {min(missing)}, or the other options exclude it."
            raise CommandError(text, returncode=NEED_ATTENTION)
        if selects and not keys:
            raise CommandError("No key is selected.", returncode=NEED_ATTENTION)
        if choice is None:
            self.say(f"{counted(len(keys))}. Decide by --release or --close.")
            return
        if len(keys) > 1 and options["key"] is not None:
            # The key of one caller may be used by another one, too.
            raise CommandError(
                f"{len(keys)} keys are selected, maybe of several callers or operations. Choose one by the number at "
                f"the beginning of its line, such as --id {keys[0].row.pk}."
            )
        if self._decide(choice, left, options) < len(keys):
            raise CommandError("Not all keys that were selected are decided about.", returncode=NEED_ATTENTION)

    def _decide(self, choice: Choice, rows: list[IdempotencyKey], options: dict[str, Any]) -> int:
        """Decide, or say what would be decided. About how many keys."""
        for answer in choice.args:
            body = f"this body: {answer.body.decode()}" if answer.body else "an empty body."
            self.say(f"Retries get {answer.status_code}, {answer.header('Content-Type')}, with {body}")
        if not options["apply"]:
            self.say(f"Would decide about {counted(len(rows))}. Add --apply to do it.")
            return len(rows)
        said = {"by": options["by"], "reason": options["reason"], "confirmed": choice.confirmed}
        result = resolve_all(rows, choice.decision, *choice.args, **said)
        changed = f" Refused, because they had changed: {result.refused}." if result.refused else ""
        self.say(f"Decided about {counted(result.resolved)}.{changed}")
        return result.resolved


def _selected(options: dict[str, Any]) -> list[Facts]:
    """The keys that the options select, as they are now. An empty list selects nothing, and not everything."""
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
        keys = keys.filter(reduce(or_, (STATES[name].condition for name in options["state"]), Q(pk__in=[])))
    if options["older_than"] is not None:
        keys = unchanged_for(keys, options["older_than"])
    found = facts_of(keys.order_by("pk").defer("headers", "body", "last_error"), results=True)
    return sorted(found, key=lambda key: key.state != IN_DOUBT)  # money may have moved, and the books must be read


def _why_not(key: Facts, choice: Choice) -> str:
    """Why this decision cannot be made about this key. Empty: it can."""
    if not key.idle:
        return "it is completed, or a worker holds it"
    asks = key.needs_word(choice.action) and not choice.confirmed
    return f"look outside first, then add --{choice.word}" if asks else ""


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


def _choice(options: dict[str, Any]) -> Choice | None:
    """What the options ask for; None: a list. Raises `CommandError` and `ValueError` for what cannot work."""
    choice = None
    if options["release"]:
        choice = Choice(release_for_retry, (), "release", LOOKED, options["calls_did_not_happen"])
    elif options["close"] is not None:
        status, body = options["close"], options["body"]
        if not 200 <= status < 500:
            raise CommandError(f"--close {status} is no final answer: give 200 to 499.")
        content_type = "application/json" if body.lstrip().startswith(("{", "[", '"')) else "text/plain; charset=utf-8"
        answer = answer_of(status, content_type, body)
        choice = Choice(close_with, (answer,), "answer", SETTLED, options["finished_calls_are_settled"])
    if options["apply"] and choice is None:
        raise CommandError("--apply: say what to decide, by --release or --close.")
    for name, missing in (("by", "Say who decides."), ("reason", "Say why, or name the ticket.")):
        if options["apply"] and not options[name].strip():
            raise CommandError(f"--{name} is missing. {missing}")
    return choice
