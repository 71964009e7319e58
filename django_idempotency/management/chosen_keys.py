"""The keys that `resolve_idempotency_keys` is about. They are read once: what is listed is what is decided about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.db.models import Prefetch, Q, prefetch_related_objects

from ..engine.protocol.error_text import without_controls
from ..engine.stores import alias_for
from ..maintenance.decisions import correctable
from ..maintenance.lookups import (
    find_key,
    half_done,
    in_doubt,
    in_flight,
    needs_attention,
    refers_to,
    stuck,
    unchanged_for,
    undecided,
)
from ..models import IdempotencyKey, IdempotencyStep
from .base import known, several

if TYPE_CHECKING:
    from django.db.models import QuerySet

STATES: dict[str, Callable[..., QuerySet[IdempotencyKey]]] = {
    "stuck": stuck,
    "in-doubt": in_doubt,
    "half-done": half_done,
}
REPEATED = ("operation", "state", "key", "id")
SELECTORS = (*REPEATED, "older_than", "resource")
CHUNK = 1000
"""Keys whose steps are read at once. A database takes some thousands of parameters in a statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Keys as they were read, with their steps.

    Attributes:
        keys: those to decide about.
        passed_over: those that need a look before a release, if `--calls-did-not-happen` is missing.
        corrected: the step whose result is to be replaced, if a person has recorded the result.
        missed: for each name that selects nothing, lines that say why.
        ambiguous: what to say of a name that selects several keys, if there is one.
    """

    keys: list[IdempotencyKey]
    passed_over: list[IdempotencyKey]
    corrected: str | None
    missed: list[str]
    ambiguous: str | None

    def lines(self) -> Iterator[str]:
        """What to print about the keys: a line for each, whatever the row holds."""
        keys = (*map(_line, self.keys), *(f"{_line(key)} Passed over." for key in self.passed_over))
        yield from map(without_controls, (*keys, *self.missed))
        if self.corrected is not None:
            yield f"This replaces the result of {self.corrected!r} that a person has recorded."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Name:
    """A value of `--key` or `--id`, and what is stored under it."""

    option: str
    value: Any
    keys: list[IdempotencyKey]

    def __str__(self) -> str:
        return f"{self.option} {self.value!r}"

    def among(self, keys: list[IdempotencyKey]) -> list[IdempotencyKey]:
        ids = {key.pk for key in self.keys}
        return [key for key in keys if key.pk in ids]


def choose(options: dict[str, Any]) -> Chosen:
    """Read the keys that the options of the command select. Raises `CommandError` if no option selects keys."""
    if all(options[name] is None for name in SELECTORS):
        raise CommandError("Choose the keys: --operation, --state, --older-than, --resource, --key or --id.")
    options = {**options, **{name: several(options[name]) for name in REPEATED}}
    if empty := [name for name in REPEATED if options[name] == []]:
        raise CommandError(f"--{empty[0]}: the list is empty. It would select every key.")
    using = known(options["database"])
    names = _names(options, using)
    step = _step(options)
    keys = _read(_matching(options, names, using))
    if step is not None:
        keys = [key for key in keys if step in _recordable(key, named=bool(names))]
    careful = options["release"] and not options["calls_did_not_happen"]
    return Chosen(
        keys=[key for key in keys if not (careful and _needs_a_look(key))],
        passed_over=[key for key in keys if careful and _needs_a_look(key)],
        corrected=step if any(step not in _doubts(key) for key in keys) else None,
        missed=[line for name in names if not name.among(keys) for line in _why_not(name, options, using)],
        ambiguous=next((_ambiguous(name, mine) for name in names if len(mine := name.among(keys)) > 1), None),
    )


def _names(options: dict[str, Any], using: str | None) -> list[_Name]:
    rows = IdempotencyKey.objects.using(alias_for(using))
    return [
        *(_Name(option="--key", value=key, keys=_read(find_key(key, using=using))) for key in options["key"] or ()),
        *(_Name(option="--id", value=id_, keys=_read(rows.filter(pk=id_))) for id_ in options["id"] or ()),
    ]


def _matching(options: dict[str, Any], names: list[_Name], using: str | None) -> QuerySet[IdempotencyKey]:
    """Keys by all the options that are given; by any of the values of each."""
    # As in the admin, a recorded result can be corrected where nothing else needs a decision.
    keys = undecided(using=using) if names and options["record"] is not None else needs_attention(using=using)
    keys = keys.order_by("pk")
    for option in ("--key", "--id"):
        if given := [name for name in names if name.option == option]:
            keys = keys.filter(pk__in={key.pk for name in given for key in name.keys})
    if options["operation"]:
        keys = keys.filter(operation__in=options["operation"])
    if options["resource"] is not None:
        keys = keys.filter(refers_to(options["resource"]))
    if options["state"]:
        found = Q()
        for state in options["state"]:
            found |= Q(pk__in=STATES[state](using=using).order_by().values("pk"))
        keys = keys.filter(found)
    if options["older_than"] is not None:
        keys = unchanged_for(keys, options["older_than"])
    return keys


def _read(keys: QuerySet[IdempotencyKey]) -> list[IdempotencyKey]:
    """The keys with their steps, without what may be large and is not shown."""
    steps = Prefetch("steps", IdempotencyStep.objects.using(keys.db).defer("result", "error").order_by("pk"))
    rows = list(keys.defer("headers", "body", "last_error"))
    for start in range(0, len(rows), CHUNK):
        prefetch_related_objects(rows[start : start + CHUNK], steps)
    return rows


def _step(options: dict[str, Any]) -> str | None:
    """The step that `--record` is about."""
    return None if options["record"] is None else str(options["record"].partition("=")[0])


def _doubts(key: IdempotencyKey) -> list[str]:
    return [step.name for step in key.steps.all() if step.finished_at is None]


def _recordable(key: IdempotencyKey, *, named: bool) -> list[str]:
    """The steps that a result may be recorded for. Only of a named key may it replace what a person has recorded."""
    recorded = correctable(key) if named else set()
    return [step.name for step in key.steps.all() if step.finished_at is None or step.name in recorded]


def _needs_a_look(key: IdempotencyKey) -> bool:
    """The policy speaks of calls. A write in doubt is never repeated without a look."""
    writes = [step for step in key.steps.all() if step.finished_at is None and step.kind == IdempotencyStep.Kind.WRITE]
    return key.policy != IdempotencyKey.Policy.RETRY or bool(writes)


def _ambiguous(name: _Name, keys: list[IdempotencyKey]) -> str:
    return (
        f"{name} selects {len(keys)} keys, of several callers or operations. Choose by the number at the "
        f"beginning of the line, such as --id {keys[0].pk}."
    )


def _why_not(name: _Name, options: dict[str, Any], using: str | None) -> Iterator[str]:
    """A line for each key under a name that selects nothing, or one if there is none."""
    for key in name.keys:
        yield f"{name} selects nothing. {key.pk} {key}: {_reason(key, options, using)}"
    if not name.keys:
        number = name.option == "--key" and name.value.isdecimal()
        advice = f" For the number of a row, write --id {name.value}." if number else ""
        yield f"{name} selects nothing. There is no such key.{advice}"


def _reason(key: IdempotencyKey, options: dict[str, Any], using: str | None) -> str:
    """Why a key that is there was not selected."""
    step = _step(options)
    if key.status == IdempotencyKey.Status.COMPLETED:
        return "it is completed."
    if key.locked_until is not None and in_flight(using=using).filter(pk=key.pk).exists():
        return f"a worker holds its lease until {key.locked_until.isoformat(' ', 'seconds')}."
    if step is not None and step not in _recordable(key, named=True):
        return f"it has no step {step!r} in doubt. In doubt: {', '.join(_doubts(key)) or 'none'}."
    if step is None and not needs_attention(using=using).filter(pk=key.pk).exists():
        if key.status == IdempotencyKey.Status.FAILED:
            return "it needs no decision: the client's next retry runs."
        return "its work has ended its own transaction, and may still run. Look again later."
    return "the other options exclude it."


def _line(key: IdempotencyKey) -> str:
    about = f", about {key.resource_type} {key.resource_id}" if key.resource_type else ""
    return (
        f"{key.pk} {key.reference} {key.operation}, caller {key.scope!r}: {key.status}, policy {key.policy or 'none'}, "
        f"attempt {key.attempt}, in doubt: {', '.join(_doubts(key)) or 'none'}{about}."
    )
