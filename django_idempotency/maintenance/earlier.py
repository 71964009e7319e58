"""What did earlier calls of a step return, and does the result that a person has entered have the same shape?

A view may mistake a result of a different shape for a refusal, and permanently tell a customer who has paid that the
payment was declined.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.db.models import F, Max
from django.utils.translation import gettext as _

from ..engine.execution.results import encode_step
from ..engine.stores.sealing import unseal
from ..exceptions import NotDecryptable
from ..models import IdempotencyKey, IdempotencyStep
from .decisions import correctable

if TYPE_CHECKING:
    from django.db.models import QuerySet

NEWEST = 100_000
"""How many of the newest steps are searched for earlier results. Without a limit, the search for a rare name could read
the whole table."""
LATEST = 200
"""How many of a step's latest results are read. Those whose keys belong to another operation, or are not completed, are
then left out.
"""
COMPARED = 20
"""The maximum number of earlier results with which an entered result is compared."""
SHOWN = 200
"""The maximum number of characters of one shape in a message."""
OWN = {"steps__key_hash": F("key_hash"), "steps__scope_hash": F("scope_hash")}
"""The condition that a step belongs to its key. An id isn't enough: two keys can share one, for example in two
partitions."""


def earlier_results(keys: QuerySet[IdempotencyKey], operation: str, step: str) -> list[str]:
    """Return the latest results of a step under completed keys of an operation, newest first, as they are stored.

    Results that a person has recorded and results that cannot be decrypted are left out.
    """
    stored = IdempotencyStep.objects.using(keys.db)
    newest = stored.aggregate(newest=Max("pk"))["newest"] or 0
    results = stored.filter(pk__gt=newest - NEWEST, name=step).exclude(result=None)
    latest = dict(results.order_by("-pk").values_list("pk", "key_id")[:LATEST])
    completed = keys.filter(operation=operation, status=IdempotencyKey.Status.COMPLETED, pk__in=latest.values())
    # The database may ignore the name's case, but a result can be decrypted only with the exact name of its step.
    own = completed.filter(steps__pk__in=latest, **OWN).annotate(named=F("steps__name"), text=F("steps__result"))
    texts = []
    # Load the decisions here, although the admin's queryset defers them. A later query would find them only by the
    # key's id, and two keys can share an id.
    for owner in own.defer(None).defer("headers", "body").order_by("-pk")[:COMPARED]:
        if owner.named == step and step not in correctable(owner):
            with suppress(NotDecryptable, RecursionError, ValueError):
                text = unseal(owner, "result", owner.text, step) or ""
                json.loads(text)
                texts.append(text)
    return texts


def shape_of(result: str) -> tuple[str, ...]:
    """Return the shape of a stored result: its JSON type, and the names of an object or the model of a row."""
    stored = json.loads(result)
    match stored:
        case {"value": dict() as value}:
            return "object", *sorted(value)
        case {"value": value}:
            return (TYPES[type(value)],)
    return "row", str(stored.get("model") if isinstance(stored, dict) else "")


TYPES = {str: "string", list: "array", bool: "boolean", type(None): "null", int: "number", float: "number"}


def unlike(value: Any, earlier: Iterable[str], *, names: bool = True) -> str:
    """Say how a result that a person has entered differs from all earlier ones, or return an empty string.

    Args:
        value: what `entered.result_of` returned.
        earlier: the results from `earlier_results`. If there are none, nothing is compared.
        names: whether the text may name what is inside the results.
    """
    entered = shape_of(encode_step(value))
    shapes = list(dict.fromkeys(map(shape_of, earlier)))
    if not shapes or entered in shapes:
        return ""
    if not names:
        return _("this result looks different from all earlier ones")
    told = {"earlier": " / ".join(map(_told, shapes)), "entered": _told(entered)}
    return _("earlier results were %(earlier)s, and this one is %(entered)s") % told


def _told(shape: tuple[str, ...]) -> str:
    type_, *within = shape
    return f"{type_} ({', '.join(within)})"[:SHOWN] if within else type_
