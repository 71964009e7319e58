"""Which operations have stored keys that retries can no longer find, and which of these keys may have run twice?

A retry no longer finds its key if the route or the operation has been renamed or removed since the first request.

# Note [Operations are found among the keys that expire next]
No index has the operation as its first column, and a table scan would be too slow for an admin page. Two bounded
queries are enough: one for the keys that need attention, and one for those that expire next. For each `ttl`, the keys
that expire next are the oldest keys that can still be replayed. If a route has been renamed since they were stored,
some of them have its old name, unless the route receives only a tiny share of all requests. An earlier rename has left
no keys behind.

# Note [Names that no endpoint has]
`run_once` accepts any name, and calls to it aren't listed anywhere. Its keys are recognized by the stored value, which
is a result in an envelope that no response has. Names that `run_once` makes from a function, such as "shop.tasks.pay",
are left out. If a view chooses its options for each request, any name could belong to that view, so only the names of
routes are listed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from django.conf import settings

from ..endpoints.listing import DECIDED, list_endpoints
from ..engine.conf import get_settings
from ..engine.execution.once import DONE, JSON, STORED_AS
from ..engine.stores import alias_for
from ..engine.stores.sealing import unseal_response
from ..engine.stores.states import Clock
from ..exceptions import NotDecryptable
from ..models import IdempotencyKey
from .lookups import in_other_operations

if TYPE_CHECKING:
    from django.db.models import QuerySet

READ = 1_000
"""The maximum number of keys that each of the two queries reads."""
READ_AT_ONCE = 500
"""How many keys of an operation are compared at once with the same keys of other operations."""
LOOKED_AT = 5
"""How many completed keys of an operation are read to find out whether `run_once` has stored them."""
LOST = "database {!r} stores keys of {!r}, but no endpoint has that name: their retries run again."
OF_A_ROUTE = re.compile("[A-Z]+ .*")
"""An operation without an explicit name is named after its method and route."""
OF_A_FUNCTION = re.compile(r"\w+(\.\w+)+")
"""`run_once` names an operation after its function."""


def unknown_operations(*, using: str | None = None, urlconf: str | None = None) -> list[str]:
    """List the names of stored operations that no endpoint has any more. See Note [Names that no endpoint has].

    Args:
        using: database alias; default: the write alias of the key table.
        urlconf: the dotted path of the URLconf; default: the project's.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or the options of an endpoint are invalid.
    """
    alias = alias_for(using)
    stored: dict[str, list[int]] = {}
    for keys in (*unfinished(alias), expiring_next(alias)):
        for operation, pk in keys.values_list("operation", "pk"):
            stored.setdefault(operation, []).append(pk)
    if not stored or not get_settings().enabled:
        return []
    endpoints = list_endpoints(urlconf)
    known = {endpoint.operation for endpoint in endpoints}
    known |= {_in_every_language(operation) for operation in known}
    unknown = {operation for operation in stored if not {operation, _in_every_language(operation)} & known}
    named = {operation for operation in unknown if not OF_A_ROUTE.fullmatch(operation)}
    if any(endpoint.note == DECIDED for endpoint in endpoints):
        return sorted(unknown - named)
    of_jobs = {name for name in named if OF_A_FUNCTION.fullmatch(name) or _by_run_once(alias, name, stored[name])}
    return sorted(unknown - of_jobs)


def sent_to_two_operations(
    operations: Iterable[str], *, using: str | None = None
) -> Iterator[tuple[IdempotencyKey, IdempotencyKey]]:
    """Yield pairs of keys with the same caller and text: the first under an old name, the second under another name.

    After a rename, both requests may have charged the customer. No index begins with the operation, so the whole table
    is read once for each old name. The second keys are found by an index.

    Args:
        operations: the old names, for example from `unknown_operations`.
        using: database alias; default: the write alias of the key table.
    """
    keys = IdempotencyKey.objects.using(alias_for(using)).defer("body", "headers", "last_error", "decisions")
    for operation in operations:
        old = keys.filter(operation=operation).order_by("pk").iterator(chunk_size=READ_AT_ONCE)
        while some := list(islice(old, READ_AT_ONCE)):
            yield from sorted(in_other_operations(some, keys), key=lambda pair: pair[1].pk)


def _by_run_once(alias: str, operation: str, pks: list[int]) -> bool:
    """Whether a completed key of this operation contains a result in the form that only `run_once` stores."""
    rows = IdempotencyKey.objects.using(alias).filter(pk__in=pks, operation=operation, status_code=DONE)
    return any(map(_is_result, rows.exclude(body=None).order_by("-pk")[:LOOKED_AT]))


def _is_result(row: IdempotencyKey) -> bool:
    with suppress(NotDecryptable, RecursionError, ValueError):
        snapshot = unseal_response(row, row)
        value = json.loads(snapshot.body or b"null") if tuple(map(tuple, snapshot.headers)) == JSON else None
        return isinstance(value, dict) and set(value) in STORED_AS
    return False


def unfinished(alias: str) -> Iterator[QuerySet[IdempotencyKey]]:
    """Keys that need attention, and those whose workers are gone: one query for each index."""
    keys = IdempotencyKey.objects.using(alias)
    needing = keys.filter(last_error__isnull=False, attention_at__isnull=False)
    yield needing.order_by("attention_at", "created_at")[:READ]
    yield keys.filter(locked_until__isnull=False, locked_until__lte=Clock()).order_by("locked_until")[:READ]


def expiring_next(alias: str) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.using(alias).filter(expires_at__gt=Clock()).order_by("expires_at")[:READ]


def _in_every_language(operation: str) -> str:
    """Replace a language prefix with `*`, because `i18n_patterns` lists an endpoint only under the active language."""
    method, _, route = operation.partition(" ")
    language, _, rest = route.partition("/")
    return f"{method} */{rest}" if language in (settings.LANGUAGE_CODE, *dict(settings.LANGUAGES)) else operation
