"""The functions of this module find the key of a client, or all keys that need attention.

The admin and the commands call the functions of this module. Your own code can also call the functions, for example in
a shell or for an alert.

Most functions return a lazy QuerySet of `IdempotencyKey`. The query runs only when you iterate over the QuerySet or
count its keys. The function `running_transactions` returns a list. On PostgreSQL, a process sends one more query before
its first lookup in each database. This query finds out whether the database has the extension Citus. All times are
compared with the database's clock.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db.models import Q

from ..engine.conf.fields import MAX_SECONDS
from ..engine.protocol.digests import hash_of, key_hash
from ..engine.protocol.key_syntax import InvalidKey, check_key, parse_header
from ..engine.stores import RunningTransaction, alias_for, store_for
from ..engine.stores.states import HALF_DONE, IN_DOUBT, IN_FLIGHT, NEEDS_ATTENTION, STUCK, Clock, State
from ..models import IdempotencyKey

if TYPE_CHECKING:
    from django.db.models import QuerySet


def find_key(key_or_reference: str, *, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find the rows of a client's key. A key has one row for each combination of caller and operation.

    The query reads the unique index of the key table. The function opens no transaction.

    Args:
        key_or_reference: the key, with or without quotes, or its `django_idempotency.keys.key_reference` from the
            log.
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows, oldest first. A text that cannot be a key finds none.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or the database has no store.
    """
    text = key_or_reference.strip()
    found = Q(pk__in=[])
    for key in _possible_keys(text):
        found |= Q(key_hash=key_hash(key), key=key)
    if re.fullmatch("[0-9a-f]{16}", text):
        found |= Q(key_hash=hash_of(text))
    return _keys(using).filter(found).order_by("pk")


def in_flight(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys with a lease that is not over.

    The query reads a partial index of leased keys. The function does not find running requests of atomic mode. In
    atomic mode, other connections can read the key of a request only after the COMMIT of the request.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows. The lease that ends first comes first.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or the database has no store.
    """
    return _in(IN_FLIGHT, using)


def stuck(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys whose lease is over and whose work has made no external call. The next retry takes over the key.

    The worker of a stuck key has died or was too slow. The query reads the partial index of leased keys.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows. The lease that ended first comes first.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or the database has no store.
    """
    return _in(STUCK, using)


def in_doubt(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys that have a step in doubt. It is not known whether a step in doubt took effect.

    No worker is processing these keys. A view can end the transaction in which it runs, for example with a raw COMMIT,
    or with DDL on MariaDB. If the view or its worker process fails after that, the key stays in progress, and has no
    lease. The function also finds keys without a lease, but only after their `ttl`. The query reads a partial index of
    unfinished steps, and the index on `expires_at`.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows, in no order.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or the database has no store.
    """
    return _in(IN_DOUBT, using)


def half_done(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys without a worker. An external call is finished, no step is in doubt, and the final result is missing.

    A half-done key does not expire before it is completed. The query reads the partial index of failed keys and the
    partial index of leased keys.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows, in no order.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or the database has no store.
    """
    return _in(HALF_DONE, using)


def needs_attention(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys that are stuck, in doubt or half done.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows, in no order.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or the database has no store.
    """
    return _keys(using).filter(NEEDS_ATTENTION)


def find_resource(text: str, *, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find the keys that refer to an object. See `Operation.refer_to`.

    The query reads the partial index of resources.

    Args:
        text: an id ("59"), or a type and an id ("order 59", "shop.order 59"). The type may have capital letters.
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows, oldest first.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or the database has no store.
    """
    return _keys(using).filter(refers_to(text)).order_by("pk")


def running_transactions(*, using: str | None = None) -> list[RunningTransaction] | None:
    """Find the open transactions that have claimed keys in atomic mode.

    One query reads only PostgreSQL's list of locks. The query does not read a table. The query finds each transaction
    that has an advisory lock and has written to the key table. Steps and cleanups write to the key table, too. If your
    project takes an advisory lock in the transaction of a step or a cleanup, the query also finds this transaction.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The transactions, the oldest first, or None if the database is not PostgreSQL.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or the database has no store.
    """
    return store_for(alias_for(using)).running()


def refers_to(text: str) -> Q:
    """Return the condition for the query of `find_resource`. The type is the text before the first space, because only
    an id can have spaces.
    """
    text = text.strip()
    found = Q(resource_id=text)
    type_, _, id_ = text.partition(" ")
    if id_ := id_.strip():
        of_type = Q(resource_type__iexact=type_) | Q(resource_type__iendswith=f".{type_}")
        found |= Q(resource_id=id_) & of_type
    return found


def unchanged_for(keys: QuerySet[IdempotencyKey], older_than: float) -> QuerySet[IdempotencyKey]:
    """Return only the keys that have not changed for `older_than` seconds. The key that has not changed for the longest
    time comes first.

    Raises `ValueError` if `older_than` is less than 0 or more than a century.
    """
    refuse_out_of_range(0, MAX_SECONDS, older_than=older_than)
    return keys.filter(updated_at__lte=Clock(plus=-older_than)).order_by("updated_at", "pk")


def refuse_out_of_range(least: float, most: float = math.inf, **numbers: float | None) -> None:
    """Raise `ValueError` if one of the numbers is too small or too large. The limits are the arguments `least` and
    `most`.
    """
    for name, number in numbers.items():
        if number is not None and not least <= number <= most:  # also refuses NaN
            bounds = f"at least {least}" if most == math.inf else f"{least} to {most}"
            raise ValueError(f"{name} must be {bounds}, not {number!r}.")


def same_row(row: IdempotencyKey) -> QuerySet[IdempotencyKey]:
    """Return a query that finds this row by its hashes and its id.

    The id alone is not enough, because a different partition or a different schema can have a row with the same id.
    """
    rows = IdempotencyKey.objects.using(row._state.db)
    return rows.filter(key_hash=row.key_hash, scope_hash=row.scope_hash, pk=row.pk)


def _possible_keys(text: str) -> set[str]:
    """Return the keys that a search for this text finds.

    Perhaps a person has copied the key from a header, where the key has quotes. So the key is the whole text, or the
    text inside the quotes.
    """
    keys = set()
    for read in (check_key, parse_header):
        with suppress(InvalidKey):
            keys.add(read(text))
    return keys


def _in(state: State, using: str | None) -> QuerySet[IdempotencyKey]:
    return _keys(using).filter(state.condition).order_by(*state.order)


def _keys(using: str | None) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.using(store_for(alias_for(using)).alias)
