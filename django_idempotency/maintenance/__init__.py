"""What is done with keys after the request: cleanup, erasure, and decisions about keys that need attention."""

from ..engine.protocol.snapshots import Snapshot
from .cleanup import Cleanup, cleanup_idempotency_keys
from .erasure import Forgotten, forget, forget_scope, scope_of_user
from .resolution import close_with, record_outcome, release_for_retry

__all__ = [
    "Cleanup",
    "Forgotten",
    "Snapshot",
    "cleanup_idempotency_keys",
    "close_with",
    "forget",
    "forget_scope",
    "record_outcome",
    "release_for_retry",
    "scope_of_user",
]
