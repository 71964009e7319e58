"""The operation of atomic mode: it has a key, and no steps."""

from __future__ import annotations

from typing import Any, NoReturn

from ...exceptions import IdempotencyConfigurationError
from .handle import Handle
from .operation import Operation


class AtomicOperation(Operation):
    """Of a view, or of a work, without `lease`: everything happens in one transaction, so nothing is named a step.

    `call`, `fetch`, `write`, `renew` and `status_url` raise. Each protected request makes one, so making it has to cost
    nothing.
    """

    __init__ = Handle.__init__

    @property
    def in_doubt(self) -> tuple[str, ...]:
        return ()

    @property
    def results(self) -> dict[str, Any]:
        return {}

    def _needs_a_lease(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise IdempotencyConfigurationError(
            "call, fetch, write, renew and status_url are for leased mode, and this operation runs in one transaction. "
            "Write to the database directly. To call something outside, pass lease=timedelta(minutes=2)."
        )

    call = acall = fetch = afetch = write = awrite = renew = arenew = _needs_a_lease
    status_url = property(_needs_a_lease)
    _keep_resource = Handle._keep_resource  # the stored result carries it
