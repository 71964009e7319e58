"""Let an operator look up one key in a backend. A backend cannot list its keys, so the key's whole identity must be
given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from ..engine.conf import backend_for
from ..engine.protocol.digests import identify_given
from ..engine.protocol.outcomes import Resource
from ..engine.protocol.stored_key import StoredKey
from ..engine.stores.values import name_of, read_value
from ..exceptions import IdempotencyConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInBackend:
    """What a backend has stored under a key.

    Attributes:
        status: "in_progress" while a worker's lease lasts, or "completed".
        status_code: the status of the stored response, 200 for a `run_once` result, or None for a key in progress.
        resource: the type and id passed to `refer_to`, or None.
    """

    status: Literal["in_progress", "completed"]
    status_code: int | None
    resource: Resource | None


def find_in_backend(backend: str, *, scope: str, operation: str, key: str) -> KeyInBackend | None:
    """Look up one key in a backend with a single read. No database is queried.

    Args:
        backend: the backend's name in `BACKENDS`.
        scope: the scope as the endpoint's `scope=` returns it, or as `operation.scope` shows it. For a user,
            `scope_of_user(user)`.
        operation: the operation's name, as `idempotency_endpoints` and the log show it, such as "POST events/".
        key: the client's key, without quotes.

    Returns:
        What is stored, or None if nothing is stored or the key has expired.

    Raises:
        IdempotencyConfigurationError: there is no such backend. Errors from the backend's client propagate.
    """
    stored = read(backend, name_in_backend(scope, operation, key))[1]
    if stored is None:
        return None
    status = cast(Literal["in_progress", "completed"], stored.status.value)
    return KeyInBackend(status=status, status_code=stored.status_code, resource=stored.resource)


def name_in_backend(scope: str, operation: str | None, key: str) -> str:
    if operation is None:
        raise IdempotencyConfigurationError(
            "a key in a backend is found only by scope, operation and key together. Pass operation=, as "
            "idempotency_endpoints shows it."
        )
    return name_of(identify_given(scope=scope, operation=operation, key=key))


def read(backend: str, name: str) -> tuple[bytes | None, StoredKey | None]:
    value = backend_for(backend).swap(name, None, None, 0)
    return value, None if value is None else read_value(value)
