"""Find a client's key, or the keys that need attention, for use in the admin, the commands, a shell or an alert.

Most functions return a lazy QuerySet of `IdempotencyKey` and compare all times with the database's clock. `using` is a
database alias, by default the write alias of the key table; if it is unknown, or its database has no store,
`IdempotencyConfigurationError` is raised. No function opens a transaction. On PostgreSQL, a process's first lookup in
each database sends one extra query, to find out whether Citus is installed there.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from django.db.models import Q
from django.db.models.functions import Coalesce

from ..engine.conf.fields import MAX_SECONDS
from ..engine.protocol.digests import hash_of, key_hash
from ..engine.protocol.key_syntax import InvalidKey, check_key, is_uuid, parse_header
from ..engine.stores import RunningTransaction, alias_for, store_for
from ..engine.stores.states import HALF_DONE, IN_DOUBT, IN_FLIGHT, NEEDS_ATTENTION, STUCK, Clock, State
from ..models import IdempotencyKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from django.db.models import QuerySet


def find_key(key_or_reference: str, *, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find all rows for a client's key: one for each combination of caller and operation.

    The query reads the unique index.

    Args:
        key_or_reference: the key, with or without quotes, or its `django_idempotency.keys.key_reference` from the log.
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows, oldest first. There are none if the text cannot be a key.
    """
    text = key_or_reference.strip()
    condition = Q(pk__in=[])
    for key in _possible_keys(text):
        condition |= Q(key_hash=key_hash(key), key=key)
    if re.fullmatch("[0-9a-f]{16}", text):
        condition |= Q(key_hash=hash_of(text))
    return _keys(using).filter(condition).order_by("pk")


def in_flight(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys with an unexpired lease, in the order in which the leases expire.

    The query reads the partial index on leased keys. Running requests in atomic mode are not found, because other
    connections cannot see their keys before the COMMIT.
    """
    return _in(IN_FLIGHT, using)


def stuck(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys whose lease has expired and whose work has made no external call. The next retry takes them over.

    Their workers died or were too slow. The query reads the partial index on leased keys; the key whose lease expired
    first comes first.
    """
    return _in(STUCK, using)


def in_doubt(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys that no worker holds, with a step that may or may not have taken effect.

    They come in no particular order. Keys in progress without a lease are included once their `ttl` has passed. For
    such a key, the view ended its own transaction, for example with a raw COMMIT or with DDL on MariaDB, and then
    failed.
    The query reads the partial indexes on failed keys and on leased keys, and the index on `expires_at`.
    """
    return _in(IN_DOUBT, using)


def half_done(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find half-done keys: an external call has finished, there is no final result, and no worker holds the key.

    They have no step in doubt, cannot expire until they are completed, and come in no particular order. The query reads
    the partial indexes on failed keys and on leased keys.
    """
    return _in(HALF_DONE, using)


def needs_attention(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys that are stuck, in doubt or half done, in no particular order."""
    return _keys(using).filter(NEEDS_ATTENTION)


def find_resource(text: str, *, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find the keys that refer to an object, oldest first. See `Operation.refer_to`.

    The query reads the partial index on resources.

    Args:
        text: an id ("59"), or a type and an id ("order 59", "shop.order 59"). The case of the type is ignored.
        using: database alias; default: the write alias of the key table.
    """
    return _keys(using).filter(refers_to(text)).order_by("pk")


def running_transactions(*, using: str | None = None) -> list[RunningTransaction] | None:
    """List the open transactions that have claimed keys in atomic mode, oldest first.

    The result is None if the database isn't PostgreSQL. A single query reads PostgreSQL's list of locks; it does not
    read any table. It finds every transaction that holds an advisory lock and has written to the key table. This
    includes the transaction of a step or a cleanup if your project has taken an advisory lock in that transaction.
    """
    return store_for(alias_for(using)).running()


def refers_to(text: str) -> Q:
    """Return the condition for `find_resource`. The type ends at the first space: only an id can contain spaces."""
    text = text.strip()
    condition = Q(resource_id=text)
    type_, _, id_ = text.partition(" ")
    if id_ := id_.strip():
        of_type = Q(resource_type__iexact=type_) | Q(resource_type__iendswith=f".{type_}")
        condition |= Q(resource_id=id_) & of_type
    return condition


def unchanged_for(keys: QuerySet[IdempotencyKey], older_than: float) -> QuerySet[IdempotencyKey]:
    """Return the keys that have not changed for `older_than` seconds, least recently changed first.

    Raises `ValueError` if `older_than` is less than 0 or more than a century.
    """
    refuse_out_of_range(0, MAX_SECONDS, older_than=older_than)
    return keys.filter(updated_at__lte=Clock(plus=-older_than)).order_by("updated_at", "pk")


def waiting_for(keys: QuerySet[IdempotencyKey], older_than: float) -> QuerySet[IdempotencyKey]:
    """Return the keys that have waited for a person for `older_than` seconds, no matter who has looked at them.

    Raises `ValueError` as `unchanged_for` does.
    """
    refuse_out_of_range(0, MAX_SECONDS, older_than=older_than)
    return keys.alias(waits_since=WAITS_SINCE).filter(waits_since__lte=Clock(plus=-older_than))


WAITS_SINCE = Coalesce("attention_at", "locked_until", "updated_at")


def waits_since(row: IdempotencyKey) -> datetime:
    """The time since which the key has needed attention or, if it needs none, the time of its last change."""
    return row.attention_at or row.locked_until or row.updated_at


def version_of(row: IdempotencyKey) -> str:
    """Return a key's version: text that differs after each change that matters to a person.

    A worker's attempt, a decision, and a result recorded by `reconcile` count as such changes. A recovery that settles
    nothing doesn't count, although it is an attempt with its own lease.
    """
    parts = (str(waits_since(row)), row.status == row.Status.COMPLETED, row.unknown, row.effects)
    return f"v{sha256(repr(parts).encode()).hexdigest()[:15]}"


def refuse_out_of_range(least: float, most: float = math.inf, **numbers: float | None) -> None:
    """Raise `ValueError` if any of the numbers is below `least` or above `most`."""
    for name, number in numbers.items():
        if number is not None and not least <= number <= most:  # also rejects NaN
            bounds = f"at least {least}" if most == math.inf else f"{least} to {most}"
            raise ValueError(f"{name} must be {bounds}, not {number!r}.")


def same_row(row: IdempotencyKey) -> QuerySet[IdempotencyKey]:
    """Find this row by its id and its hashes, because a row in another partition or schema can have the same id."""
    rows = IdempotencyKey.objects.using(row._state.db)
    return rows.filter(key_hash=row.key_hash, scope_hash=row.scope_hash, pk=row.pk)


def in_other_operations(
    rows: Sequence[IdempotencyKey], among: QuerySet[IdempotencyKey], at_most: int | None = None
) -> Iterator[tuple[IdempotencyKey, IdempotencyKey]]:
    """Yield pairs of rows with the same key and caller: the first is in `rows`, the second in another operation.

    The unique index finds all callers' rows for a key.

    Args:
        rows: rows of a single operation.
        among: the rows to search.
        at_most: how many rows of `among` are read at most.
    """
    named = {(row.key, row.scope): row for row in rows}
    others = among.filter(key_hash__in={row.key_hash for row in rows}).order_by("key_hash", "scope_hash")[:at_most]
    for other in others:  # compared in Python, because a collation may treat different texts as equal
        row = named.get((other.key, other.scope))
        if row is not None and other.operation != row.operation:
            yield row, other


def _possible_keys(text: str) -> set[str]:
    """The keys that the text may represent: the whole text, or the part in quotation marks, as in a copied header.

    A UUID is also looked up in lower case, because endpoints that parse UUIDs store them that way.
    """
    keys = set()
    for read in (check_key, parse_header):
        with suppress(InvalidKey):
            keys.add(read(text))
    return keys | {key.lower() for key in keys if is_uuid(key)}


def _in(state: State, using: str | None) -> QuerySet[IdempotencyKey]:
    return _keys(using).filter(state.condition).order_by(*state.order)


def _keys(using: str | None) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.using(store_for(alias_for(using)).alias)
