from __future__ import annotations

import getpass
from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError
from django.utils.timesince import timesince

from ...engine.execution.values import encode_step
from ...engine.protocol.error_text import describe
from ...engine.protocol.snapshots import Snapshot
from ...engine.stores import alias_for
from ...engine.stores.sealing import unseal
from ...engine.stores.states import ATTENTION, NEEDS_ATTENTION, UNDECIDED
from ...exceptions import IdempotencyError, NotDecryptable
from ...maintenance.entered import AS_IT_IS, is_envelope, json_value, row_of
from ...maintenance.facts import Facts, facts_of
from ...maintenance.lookups import find_key, refers_to, unchanged_for
from ...maintenance.resolution import close_with, record_outcome, release_for_retry, resolve_all
from ...models import IdempotencyKey, IdempotencyStep
from ..databases import known
from ..output import EscapingCommand
from ..repeated import several

REFUSED = 3
"""Exit status. 1 is Django's for errors, 2 is argparse's."""
STATES = {state.name.replace("_", "-"): state for state in ATTENTION}
REPEATED = ("operation", "state", "key", "id")
SELECTORS = (*REPEATED, "older_than", "resource")
SHOWN = 200
"""Characters of the result of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is to be decided about each key: a function of `maintenance.resolution`, and its words.

    Attributes:
        action: as in the trail of decisions.
        verbs: what would be done, and what was done.
        word: the option by which a person says what was found outside. Without it, keys that need it are passed over.
        step: the step that a result is recorded for.
        preview: what retries will get.
    """

    action: str
    verbs: tuple[str, str]
    decision: Callable[..., None]
    args: tuple[Any, ...] = ()
    word: str = ""
    step: str | None = None
    preview: str = ""


class Command(EscapingCommand):
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
        chosen.add_argument(
            "--older-than", type=float, metavar="S", help="Keys whose state has not changed for S seconds."
        )
        chosen.add_argument("--resource", help="What the operation is about: an id, or 'TYPE ID'.")
        chosen.add_argument("--key", action="append", help="A key, or its reference in the log. May be repeated.")
        chosen.add_argument(
            "--id", action="append", type=int, metavar="N", help="The number of a key's row. May be repeated."
        )
        chosen.add_argument("--database", help="Database alias. Default: the alias that keys are written to.")
        decision = parser.add_argument_group("the decision (needs an option that selects keys)")
        one = decision.add_mutually_exclusive_group()
        one.add_argument(
            "--release",
            action="store_true",
            help="The next retry makes calls in doubt again. Only keys on retry, without a write in doubt.",
        )
        one.add_argument(
            "--record",
            metavar="STEP=JSON",
            help="This result stands for the step in doubt of one key; of a step that returns a model instance, "
            '\'{"model": "shop.Order", "pk": 59}\'. With --key or --id, it also replaces a result that a person has '
            "recorded.",
        )
        one.add_argument(
            "--close",
            type=int,
            metavar="STATUS",
            help="Retries get this status, 200 to 499, and nothing runs again. Only keys without finished calls.",
        )
        decision.add_argument(
            "--calls-did-not-happen",
            action="store_true",
            help="With --release: also other keys. You have looked: what is in doubt did not take effect.",
        )
        decision.add_argument(
            "--finished-calls-are-settled",
            action="store_true",
            help="With --close: also other keys. You have looked: the order exists, or the money went back.",
        )
        decision.add_argument(
            "--body", default="", help="With --close: the body, JSON, or a plain text that does not begin with { or [."
        )
        decision.add_argument("--reason", default="", help="Why, or the ticket. Kept with each key.")
        decision.add_argument("--by", help="Who decides. Default: the user of the operating system.")
        decision.add_argument("--apply", action="store_true", help="Decide. Without it, nothing is changed.")

    def handle(self, *args: Any, **options: Any) -> None:
        options |= {name: several(options[name]) for name in REPEATED}
        try:
            choice = _choice(options)
            if empty := [name for name in REPEATED if options[name] == []]:
                raise CommandError(f"--{empty[0]}: the list is empty. It would select every key.")
            names = _names(options)
            keys = _chosen(options, choice, names)
            missed = [name for name, ids in names.items() if not ids & {key.row.pk for key in keys}]
            said = choice is None or not choice.word or options[choice.word.replace("-", "_")]
            passed_over = [] if said else [key.row.pk for key in keys if key.needs_word(choice.action)]
            for key in keys:
                self.stdout.write(_line(key) + (" Passed over." if key.row.pk in passed_over else ""))
            for name in missed:
                self.stdout.write(_why_not(name, names[name], options, choice))
            if not keys and (choice or any(options[name] is not None for name in SELECTORS)):
                raise CommandError("No key is selected.", returncode=REFUSED)
            if choice is None:
                done, refused = _counted(keys) + (" Decide by --release, --record or --close." if keys else ""), 0
            else:
                _refuse_several(keys, names, choice)
                rows = [key.row for key in keys if key.row.pk not in passed_over]
                done, refused = self._decide(choice, rows, options, confirmed=bool(said))
            over = f" Passed over: {len(passed_over)}. Look outside first, then add --{choice.word}."
            self.stdout.write(done + (over if passed_over else ""))
        except DatabaseError as error:  # without what the database quotes of a row
            raise CommandError(describe(error)) from error
        except (IdempotencyError, ValueError) as error:
            raise CommandError(str(error)) from error
        if refused or passed_over or missed:
            raise CommandError("Not all keys that were named are decided about.", returncode=REFUSED)

    def _decide(
        self, choice: Choice, rows: list[IdempotencyKey], options: dict[str, Any], *, confirmed: bool
    ) -> tuple[str, int]:
        """What was done, or would be done; and how many keys were refused."""
        if choice.preview:
            self.stdout.write(choice.preview)
        if not options["apply"]:
            return f"Would {choice.verbs[0]} {_counted(rows)}. Add --apply to do it.", 0
        by, reason = options["by"] or _user(), options["reason"]
        result = resolve_all(rows, choice.decision, *choice.args, by=by, reason=reason, confirmed=confirmed)
        changed = f" Refused, because they had changed: {result.refused}." if result.refused else ""
        return f"{choice.verbs[1]} {_counted(range(result.resolved))}.{changed}", result.refused


def _names(options: dict[str, Any]) -> dict[str, set[int]]:
    """The rows under each value of --key and --id."""
    using = known(options["database"])
    found = {f"--key {key!r}": find_key(key, using=using) for key in options["key"] or ()}
    rows = IdempotencyKey.objects.using(alias_for(using))
    found |= {f"--id {id_}": rows.filter(pk=id_) for id_ in options["id"] or ()}
    return {name: set(keys.values_list("pk", flat=True)) for name, keys in found.items()}


def _chosen(options: dict[str, Any], choice: Choice | None, names: dict[str, set[int]]) -> list[Facts]:
    """The keys that the options select, as they are now. One that is named may need no attention, as in the admin."""
    rows = IdempotencyKey.objects.using(alias_for(known(options["database"])))
    keys = rows.filter(UNDECIDED if names else NEEDS_ATTENTION).order_by("pk").defer("headers", "body", "last_error")
    for option in ("--key", "--id"):
        if given := [ids for name, ids in names.items() if name.startswith(option)]:
            keys = keys.filter(pk__in=set().union(*given))
    if options["operation"]:
        keys = keys.filter(operation__in=options["operation"])
    if options["resource"] is not None:
        keys = keys.filter(refers_to(options["resource"]))
    if options["state"]:
        keys = keys.filter(reduce(or_, (STATES[name].condition for name in options["state"])))
    if options["older_than"] is not None:
        keys = unchanged_for(keys, options["older_than"])
    facts = facts_of(keys, results=True)
    if choice is None or choice.step is None:
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


def _why_not(name: str, ids: set[int], options: dict[str, Any], choice: Choice | None) -> str:
    """Why a name selects nothing."""
    rows = IdempotencyKey.objects.using(alias_for(known(options["database"]))).filter(pk__in=ids).order_by("pk")
    reasons = [f"{key.row.pk} {key.row}: {_reason(key, choice)}" for key in facts_of(rows)]
    return "\n".join(f"{name} selects nothing. {reason}" for reason in reasons or ["There is no such key."])


def _reason(key: Facts, choice: Choice | None) -> str:
    if key.row.status == IdempotencyKey.Status.COMPLETED:
        return "it is completed."
    if key.live and key.row.locked_until is not None:
        return f"a worker holds its lease until {key.row.locked_until.isoformat(' ', 'seconds')}."
    if choice is not None and choice.step is not None and choice.step not in key.recordable:
        return f"it has no step {choice.step!r} in doubt. In doubt: {', '.join(key.in_doubt) or 'none'}."
    return "the other options exclude it."


def _line(key: Facts) -> str:
    row, done = key.row, [f"{step.name}={_result(key, step)}" for step in key.steps if step.finished_at is not None]
    about = f", about {row.resource_type} {row.resource_id}" if row.resource_type else ""
    return (
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


def _counted(keys: Sized) -> str:
    return f"{len(keys)} {'key' if len(keys) == 1 else 'keys'}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # a container may run under a number without a name
        raise CommandError("The operating system does not know your name. Say who decides: --by NAME.") from error


def _choice(options: dict[str, Any]) -> Choice | None:
    if not options["release"] and options["record"] is None and options["close"] is None:
        if options["apply"]:
            raise CommandError("--apply: say what to decide, by --release, --record or --close.")
        return None
    if all(options[name] is None for name in SELECTORS):
        raise CommandError("Choose the keys: --operation, --state, --older-than, --resource, --key or --id.")
    if options["apply"] and not options["reason"].strip():
        raise CommandError("--reason is missing. Say why, or name the ticket.")
    if options["release"]:
        word = "calls-did-not-happen"
        return Choice(action="release", verbs=("release", "Released"), decision=release_for_retry, word=word)
    if options["record"] is not None:
        step, separator, text = options["record"].partition("=")
        if not separator:
            raise CommandError(f'--record {options["record"]!r}: write STEP=JSON, such as charge=\'{{"id": "ch_1"}}\'.')
        verbs = ("record a result for", "Recorded a result for")
        return Choice(action="record", verbs=verbs, decision=record_outcome, args=(step, _entered(text)), step=step)
    status, body = options["close"], options["body"]
    if not 200 <= status < 500:
        raise CommandError(f"--close {status} is no final answer: give 200 to 499.")
    media_type = _media_type(body)
    return Choice(
        action="answer",
        verbs=("close", "Closed"),
        decision=close_with,
        args=(Snapshot(status_code=status, headers=(("Content-Type", media_type), AS_IT_IS), body=body.encode()),),
        word="finished-calls-are-settled",
        preview=f"Retries get {status}, {media_type}, with {f'this body: {body}' if body else 'an empty body.'}",
    )


def _entered(text: str) -> Any:
    """The value of `--record`, as the admin's form reads it."""
    try:
        value = json_value(text)
    except ValueError as error:
        raise CommandError(f"--record: {text!r} is not JSON ({error}). Put a text in double quotes.") from error
    if is_envelope(value):
        raise CommandError(
            f'--record: {text!r} is the envelope in which a result is kept. Enter only what stands inside "value". If '
            "the step itself returns such an object, call record_outcome() in a shell."
        )
    try:
        result = row_of(value)
    except LookupError as error:
        raise CommandError(f"--record: {error}") from error
    encode_step(result)
    return result


def _media_type(body: str) -> str:
    try:
        json_value(body)
    except ValueError as error:
        if body.lstrip().startswith(("{", "[")):
            raise CommandError(
                f"--body: {body!r} is not JSON ({error}). Check the quotes: names and texts stand in double quotes, "
                "the whole body in single quotes for the shell. A plain text must not begin with { or [."
            ) from error
        return "text/plain; charset=utf-8"
    return "application/json"
