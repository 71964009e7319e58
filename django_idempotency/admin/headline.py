"""The one sentence that a person on call must read first, on the admin's index page and above the list of keys."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.timesince import timesince
from django.utils.translation import ngettext

from ..exceptions import IdempotencyConfigurationError
from ..maintenance.lookups import running_transactions
from ..maintenance.renamed import unknown_operations
from ..models import IdempotencyKey
from .links import show, shown
from .overview import NEEDING, Number, attention, hanging, overview
from .texts import encodable, readable_operation

Keys = QuerySet[IdempotencyKey]
NAMED = 3
"""The maximum number of operations in the sentence. The oldest come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """Everything above the list of keys.

    Attributes:
        numbers: the number of keys in each state.
        needing: how many of them need attention.
        sentence: what has happened, since when, what it may have cost a customer, and where to begin.
        first: the id of the key to begin with, or None.
        hanging: how many open transactions have held keys for too long.
        open: the open transactions that hold keys, the oldest first.
        lost: the operations of stored keys that no endpoint has any more.
    """

    numbers: list[Number]
    needing: Number
    sentence: str
    first: int | None
    hanging: int
    open: Sequence[Any]
    lost: list[str]

    @property
    def alarm(self) -> bool:
        return bool(self.needing.count or self.hanging or self.lost)


def headline(model_admin: Any, request: HttpRequest, keys: Keys) -> Headline:
    """Read the table, using about fifteen queries that each have a limit.

    Args:
        keys: those that this person may see.
    """
    numbers = overview(keys)
    worst = next((number for number in numbers if number.state in NEEDING and number.count), None)
    open_ = running_transactions(using=keys.db) or []
    lost: list[str] = []
    with suppress(IdempotencyConfigurationError):
        lost = [*map(readable_operation, unknown_operations(using=keys.db))]
    first = None if worst is None else worst.operations[0]["oldest"]
    return Headline(
        numbers=numbers,
        needing=attention(numbers),
        sentence="" if worst is None else _sentence(worst, _amount(model_admin, request, keys, first)),
        first=first,
        hanging=hanging(open_),
        open=open_,
        lost=lost,
    )


def _sentence(worst: Number, amount: str) -> str:
    """Say what the worst state means. Its consequences for a customer depend on which service was called."""
    named = [f"{line['count']} × {encodable(line['name'])}" for line in worst.operations]
    values = {
        "count": worst,
        "operations": ", ".join([*named[:NAMED], *(["…"] if named[NAMED:] else [])]),
        "age": timesince(worst.operations[0]["since"]),
        "amount": f" ({amount})" if amount else "",
    }
    if worst.state == "in_doubt":
        text = ngettext(
            "The outcome of %(count)s request has been unknown for %(age)s (%(operations)s): a customer may have paid"
            "%(amount)s and have no order. Begin with its key.",
            "The outcome of %(count)s requests is unknown (%(operations)s), the oldest for %(age)s: a customer may "
            "have paid%(amount)s and have no order. Begin with the oldest key.",
            worst.count,
        )
    elif worst.state == "half_done":
        text = ngettext(
            "%(count)s request stopped halfway (%(operations)s), %(age)s ago: a customer may have paid%(amount)s and "
            "have no order. Begin with its key.",
            "%(count)s requests stopped halfway (%(operations)s), the oldest %(age)s ago: a customer may have paid"
            "%(amount)s and have no order. Begin with the oldest key.",
            worst.count,
        )
    else:
        text = ngettext(
            "%(count)s request has lost its worker (%(operations)s), %(age)s ago. It has called nothing outside, so "
            "nobody has paid; a retry or a cleanup frees its key.",
            "%(count)s requests have lost their workers (%(operations)s), the oldest %(age)s ago. They have called "
            "nothing outside, so nobody has paid; a retry or a cleanup frees their keys.",
            worst.count,
        )
    return text % values


def _amount(model_admin: Any, request: HttpRequest, keys: Keys, first: Any) -> str:
    rows = list(keys.filter(pk=first))
    show(rows, model_admin, request, results=True)
    return next((shown(row).amount for row in rows), "")
