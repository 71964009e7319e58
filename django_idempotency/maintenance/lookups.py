"""Finding keys: by the client's key, and the ones that need attention. For shells, the admin, alerts and commands.

Each function but the last returns a lazy QuerySet of `IdempotencyKey`: no key is read before you iterate, count or
filter on. PostgreSQL is asked once in a process whether it has Citus. Times are compared with the database's clock. The
conditions are those of the table of states.
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
    """Find what is stored under a client's key: one row for each caller and operation that used the key.

    Reads the unique index. Opens no transaction.

    Args:
        key_or_reference: the key, with or without quotes, or its `django_idempotency.keys.key_reference` from the
            log.
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows, oldest first. Empty for a text that cannot be a key.

    Raises:
        IdempotencyConfigurationError: for an unknown alias, or a database without a store.
    """
    text = key_or_reference.strip()
    found = Q(pk__in=[])
    for key in _possible_keys(text):
        found |= Q(key_hash=key_hash(key), key=key)
    if re.fullmatch("[0-9a-f]{16}", text):
        found |= Q(key_hash=hash_of(text))
    return _keys(using).filter(found).order_by("pk")


def in_flight(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys whose worker holds a lease that is not over.

    Reads a partial index, which holds leased keys only: no query can see a key without a lease before its COMMIT.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows. The lease that ends first comes first.

    Raises:
        IdempotencyConfigurationError: for an unknown alias, or a database without a store.
    """
    return _in(IN_FLIGHT, using)


def stuck(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys whose worker has died or is too slow, before any call. The next retry takes the key over.

    The lease of such a key is over. Reads the partial index of leases.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows. The lease that ended first comes first.

    Raises:
        IdempotencyConfigurationError: for an unknown alias, or a database without a store.
    """
    return _in(STUCK, using)


def in_doubt(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys that no worker holds, with a step that was started and has no result. The step may have taken effect.

    A key whose work has ended its own transaction (a raw COMMIT, DDL on MariaDB), and then failed or died, is found
    when its `ttl` is over. Reads a partial index of unfinished steps, and the index of `expires_at`.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows, in no order.

    Raises:
        IdempotencyConfigurationError: for an unknown alias, or a database without a store.
    """
    return _in(IN_DOUBT, using)


def half_done(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys that no worker holds, with a finished call and without a doubt. The operation did not end.

    Such a key does not expire before it is completed. Reads the partial indexes of failed and of leased keys.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows, in no order.

    Raises:
        IdempotencyConfigurationError: for an unknown alias, or a database without a store.
    """
    return _in(HALF_DONE, using)


def needs_attention(*, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find keys that are stuck, in doubt or half done.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows, in no order.

    Raises:
        IdempotencyConfigurationError: for an unknown alias, or a database without a store.
    """
    return _keys(using).filter(NEEDS_ATTENTION)


def find_resource(text: str, *, using: str | None = None) -> QuerySet[IdempotencyKey]:
    """Find the keys that refer to an object: see `Operation.refer_to`.

    Reads the partial index of resources.

    Args:
        text: an id ("59"), or a type and an id ("order 59", "shop.order 59"). Capitals of the type do not matter.
        using: database alias; default: the write alias of the key table.

    Returns:
        The rows, oldest first.

    Raises:
        IdempotencyConfigurationError: for an unknown alias, or a database without a store.
    """
    return _keys(using).filter(refers_to(text)).order_by("pk")


def running_transactions(*, using: str | None = None) -> list[RunningTransaction] | None:
    """Find open transactions that hold keys of atomic mode: the requests that run now.

    Asks PostgreSQL for its locks: one query, and no table is read. A transaction counts if it has written the key table
    and holds an advisory lock. So a transaction of yours with an advisory lock of its own counts too, while a step or a
    cleanup runs in it.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The transactions, the oldest first. None: this database does not tell. Only PostgreSQL does.

    Raises:
        IdempotencyConfigurationError: for an unknown alias, or a database without a store.
    """
    return store_for(alias_for(using)).running()


def refers_to(text: str) -> Q:
    """The condition of `find_resource`. An id alone may have spaces, too; a type has none."""
    text = text.strip()
    found = Q(resource_id=text)
    type_, _, id_ = text.partition(" ")
    if id_ := id_.strip():
        of_type = Q(resource_type__iexact=type_) | Q(resource_type__iendswith=f".{type_}")
        found |= Q(resource_id=id_) & of_type
    return found


def unchanged_for(keys: QuerySet[IdempotencyKey], older_than: float) -> QuerySet[IdempotencyKey]:
    """Narrow down to the keys whose state has not changed for that many seconds, the oldest state first.

    Raises `ValueError` for less than 0 and for more than a century.
    """
    refuse_impossible(0, MAX_SECONDS, older_than=older_than)
    return keys.filter(updated_at__lte=Clock(plus=-older_than)).order_by("updated_at", "pk")


def refuse_impossible(least: float, most: float = math.inf, **numbers: float | None) -> None:
    """Raise `ValueError` for the first of these numbers that is not between both bounds."""
    for name, number in numbers.items():
        if number is not None and not least <= number <= most:  # NaN is neither above nor below
            bounds = f"at least {least}" if most == math.inf else f"{least} to {most}"
            raise ValueError(f"{name} must be {bounds}, not {number!r}.")


def same_row(row: IdempotencyKey) -> QuerySet[IdempotencyKey]:
    """By its hashes, too: an id alone may name several rows of a partitioned table, or another tenant's row."""
    rows = IdempotencyKey.objects.using(row._state.db)
    return rows.filter(key_hash=row.key_hash, scope_hash=row.scope_hash, pk=row.pk)


def _possible_keys(text: str) -> set[str]:
    """The text as a key, and as the header that carries a key in quotes."""
    keys = set()
    for read in (check_key, parse_header):
        with suppress(InvalidKey):
            keys.add(read(text))
    return keys


def _in(state: State, using: str | None) -> QuerySet[IdempotencyKey]:
    return _keys(using).filter(state.condition).order_by(*state.order)


def _keys(using: str | None) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.using(store_for(alias_for(using)).alias)
