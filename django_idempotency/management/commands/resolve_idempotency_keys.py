from __future__ import annotations

import getpass
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from ...engine.execution.values import encode_step
from ...engine.protocol.snapshots import Snapshot
from ...exceptions import IdempotencyError
from ...maintenance.resolution import resolve_all
from ...maintenance.entered import is_envelope, json_value, row_of
from ...maintenance.resolution import close_with, record_outcome, release_for_retry
from ..chosen_keys import STATES, Chosen, choose
from ..output import EscapingCommand

REFUSED = 3
"""Exit status. 1 is Django's for errors, 2 is argparse's."""
AS_IT_IS = ("X-Content-Type-Options", "nosniff")
"""As the admin's answers by hand: no browser takes a text for a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is to be decided about each key: a function of `maintenance.resolution`, its arguments, and what to show."""

    verb: str
    decision: Callable[..., None]
    args: tuple[Any, ...] = ()
    preview: str = ""


class Command(EscapingCommand):
    help = (
        "Decide about idempotency keys that need attention, as the admin does, in bulk and in scripts. Without --apply "
        "the keys are only listed. With it, exactly the listed keys are decided about. Each line begins with the "
        "number of the key's row, for --id, and names the caller. Each decision is kept with its key: who, when, why. "
        "Exit status, also without --apply: 0 done, 1 error, 3 a key was refused or passed over, or a --key or --id "
        "selects nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        chosen = parser.add_argument_group("which keys (at least one; all given ones must apply)")
        chosen.add_argument("--operation", action="append", help="Operation, such as 'POST pay/'. May be repeated.")
        chosen.add_argument("--state", action="append", choices=STATES, help="May be repeated. Default: all of them.")
        chosen.add_argument(
            "--older-than", type=float, metavar="S", help="Keys whose state has not changed for S seconds."
        )
        chosen.add_argument("--resource", help="What the operation is about: an id, or 'TYPE ID'.")
        chosen.add_argument(
            "--key",
            action="append",
            help="A key, or its reference in the log. May be repeated. If it selects the rows of several callers or "
            "operations, it is refused: choose by --id.",
        )
        chosen.add_argument(
            "--id", action="append", type=int, metavar="N", help="The number of a key's row. May be repeated."
        )
        chosen.add_argument("--database", help="Database alias. Default: the alias that keys are written to.")
        decision = parser.add_argument_group("the decision")
        one = decision.add_mutually_exclusive_group(required=True)
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
            "--close", type=int, metavar="STATUS", help="Retries get this status, 200 to 499, and nothing runs again."
        )
        decision.add_argument(
            "--calls-did-not-happen",
            action="store_true",
            help="With --release: also other keys. You have looked: what is in doubt did not take effect.",
        )
        decision.add_argument(
            "--body", default="", help="With --close: the body, JSON, or a plain text that does not begin with { or [."
        )
        decision.add_argument("--reason", required=True, help="Why, or the ticket. Kept with each key.")
        decision.add_argument("--by", help="Who decides. Default: the user of the operating system.")
        decision.add_argument("--apply", action="store_true", help="Decide. Without it, nothing is changed.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            choice = _choice(options)
            chosen = choose(options)
            for line in (*chosen.lines(), choice.preview):
                if line:
                    self.stdout.write(line)
            if chosen.ambiguous is not None:
                raise CommandError(chosen.ambiguous)
            if options["record"] is not None and len(chosen.keys) > 1:
                raise CommandError(
                    f"--record: {len(chosen.keys)} keys are selected. A result belongs to one: add --id."
                )
            self._decide(choice, chosen, options)
        except (IdempotencyError, DatabaseError, ValueError) as error:
            raise CommandError(str(error)) from error

    def _decide(self, choice: Choice, chosen: Chosen, options: dict[str, Any]) -> None:
        why = "because their policy is not retry, or a write is in doubt"
        held = f" Passed over, {why}: {len(chosen.passed_over)}." if chosen.passed_over else ""
        left = bool(chosen.passed_over or chosen.missed)
        if options["apply"]:
            if not options["reason"].strip():
                raise CommandError("--reason is empty. Say why, or name the ticket.")
            by = options["by"] or _user()
            result = resolve_all(chosen.keys, choice.decision, *choice.args, by=by, reason=options["reason"])
            refused = f" Refused, because they had changed: {result.refused}." if result.refused else ""
            self.stdout.write(f"{choice.verb}: {result.resolved}.{refused}{held}")
            left = left or bool(result.refused)
        else:
            self.stdout.write(f"{choice.verb}: {len(chosen.keys)}. Nothing was changed: --apply is missing.{held}")
        if left:
            text = "Some keys were not decided about." if options["apply"] else "Some keys would not be decided about."
            raise CommandError(text, returncode=REFUSED)


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
        return Choice(verb="Record", decision=record_outcome, args=(step, _result(text)))
    status, body = options["close"], options["body"]
    if not 200 <= status < 500:
        raise CommandError(f"--close {status} is no final answer: give 200 to 499.")
    media_type = _media_type(body)
    answer = Snapshot(status_code=status, headers=(("Content-Type", media_type), AS_IT_IS), body=body.encode())
    preview = f"Retries get {status}, {media_type}, with {f'this body: {body}' if body else 'an empty body.'}"
    return Choice(verb="Close", decision=close_with, args=(answer,), preview=preview)


def _result(text: str) -> Any:
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
