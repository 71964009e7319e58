"""Find operations with stored keys that retries can no longer find, because a route was renamed or removed.

# Note [Operations are found among the keys that expire next]
No index has the operation as its first column, and a table scan would be too slow for an admin page. Two bounded
queries are enough: one for the keys that need attention, and one for those that expire next. For each `ttl`, the latter
are the oldest keys that are still replayed. If a route has been renamed since they were stored, they include its old
name, unless the route receives only a tiny share of all requests. An earlier rename has left no keys behind.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from django.conf import settings

from ..endpoints.listing import list_endpoints
from ..engine.conf import get_settings
from ..engine.stores import alias_for
from ..engine.stores.states import Clock
from ..models import IdempotencyKey
from .lookups import needs_attention

if TYPE_CHECKING:
    from django.db.models import QuerySet

READ = 1_000
"""The maximum number of keys that each of the two queries reads."""
LOST = "database {!r} stores keys of {!r}, but no endpoint has that name: their retries run again."
OF_A_ROUTE = re.compile("[A-Z]+ .*")
"""An operation without an explicit name is named after its method and route."""


def operations_without_a_route(*, using: str | None = None, urlconf: str | None = None) -> list[str]:
    """List the stored operation names that consist of a method and a route but no longer belong to any endpoint.

    Explicit names are left out, because `run_once` also uses them.

    Args:
        using: database alias; default: the write alias of the key table.
        urlconf: the dotted path of the URLconf; default: the project's.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or the options of an endpoint are invalid.
    """
    alias = alias_for(using)
    stored: set[str] = set()
    for keys in (needs_attention(using=alias)[:READ], expiring_next(alias)):
        stored.update(filter(OF_A_ROUTE.fullmatch, keys.values_list("operation", flat=True)))
    if not stored or not get_settings().enabled:
        return []
    known = {endpoint.operation for endpoint in list_endpoints(urlconf)}
    known |= {_in_every_language(operation) for operation in known}
    return sorted(operation for operation in stored - known if _in_every_language(operation) not in known)


def expiring_next(alias: str) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.using(alias).filter(expires_at__gt=Clock()).order_by("expires_at")[:READ]


def _in_every_language(operation: str) -> str:
    """Replace a language prefix with `*`, because `i18n_patterns` lists an endpoint only under the active language."""
    method, _, route = operation.partition(" ")
    language, _, rest = route.partition("/")
    return f"{method} */{rest}" if language in (settings.LANGUAGE_CODE, *dict(settings.LANGUAGES)) else operation
