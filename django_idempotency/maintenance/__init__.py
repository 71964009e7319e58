"""Find stored keys, clean them up, resolve them, and erase what is stored about one caller."""

from ..engine.protocol.outcomes import Snapshot
from ..engine.request.callers import scope_of_user
from ..engine.stores import RunningTransaction
from .cleanup import Cleanup, cleanup_idempotency_keys
from .elsewhere import KeyInBackend, find_in_backend
from .erasure import Forgotten, forget, forget_scope
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

__all__ = ["Cleanup", "cleanup_idempotency_keys"]
__all__ += ["Forgotten", "forget", "forget_scope", "scope_of_user"]
__all__ += ["RunningTransaction", "find_key", "find_resource", "running_transactions"]
__all__ += ["KeyInBackend", "find_in_backend"]
__all__ += ["half_done", "in_doubt", "in_flight", "needs_attention", "stuck"]
__all__ += ["Asked", "Recovered", "recover_idempotency_keys", "remember_calls"]
__all__ += ["Resolved", "Snapshot", "close_with", "record_outcome", "release_for_retry", "resolve_all"]
