"""What you do with keys after the request: find, clean up, erase, and decide about keys that need attention."""

from ..engine.protocol.outcomes import Snapshot
from ..engine.stores import RunningTransaction
from .cleanup import Cleanup, cleanup_idempotency_keys
from .erasure import Forgotten, forget, forget_scope, scope_of_user
from .lookups import (
    find_key,
    find_resource,
    half_done,
    in_doubt,
    in_flight,
    needs_attention,
    running_transactions,
    stuck,
)
from .recovery import Asked, Recovered, recover_idempotency_keys
from .resolution import Resolved, close_with, record_outcome, release_for_retry, resolve_all
from .restored import remember_calls

__all__ = [
    "Asked",
    "Cleanup",
    "Forgotten",
    "Recovered",
    "Resolved",
    "RunningTransaction",
    "Snapshot",
    "cleanup_idempotency_keys",
    "close_with",
    "find_key",
    "find_resource",
    "forget",
    "forget_scope",
    "half_done",
    "in_doubt",
    "in_flight",
    "needs_attention",
    "record_outcome",
    "recover_idempotency_keys",
    "release_for_retry",
    "remember_calls",
    "resolve_all",
    "running_transactions",
    "scope_of_user",
    "stuck",
]
