"""Signals about keys, to count, trace or alert.

Every signal is sent after the commit or the rollback that it reports. Inside an outer `atomic()` it is sent after the
commit of that block. Receivers run in the request. The log `django.dispatch` reports a receiver that raises, and the
request goes on; a slow receiver makes the request slow. The sender is `IdempotencyKey`.

All signals but `keys_purged` have these arguments:

    identity: its `scope`, `operation` and `key` name the request, its `reference` names the key in logs.
    using: database alias.
    attempt: of `key_claimed` and `key_taken_over`: 1 for the first run, one more for each later run. Else None.
    resource: what the operation is about, as `operation.refer_to` has kept it: a tuple of type and id. Else None.
    reason: of `key_released`: what happened, without any text of the client. Else empty.
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = [
    "key_claimed",
    "key_completed",
    "key_conflicted",
    "key_held",
    "key_mismatched",
    "key_released",
    "key_replayed",
    "key_taken_over",
    "keys_purged",
]

# use_caching: every request asks whether a signal has receivers.
key_claimed = Signal(use_caching=True)
"""A worker has claimed the key. Leased mode: before the view runs. Atomic mode: with the signal of the outcome."""

key_completed = Signal(use_caching=True)
"""The response is stored and will be replayed."""

key_replayed = Signal(use_caching=True)
"""A retry got the stored response."""

key_conflicted = Signal(use_caching=True)
"""A duplicate came while the first request was still running."""

key_mismatched = Signal(use_caching=True)
"""A request used the key of another request: their fingerprints differ."""

key_released = Signal(use_caching=True)
"""The run ended without a final result. The next retry runs again, unless a call in doubt holds the key."""

key_taken_over = Signal(use_caching=True)
"""Leased mode, instead of `key_claimed`: an earlier attempt's lease had lapsed, and this attempt takes its place."""

key_held = Signal(use_caching=True)
"""A request was refused, or has failed, because it is unknown what took effect. A person has to find out."""

keys_purged = Signal(use_caching=True)
"""A cleanup has ended. Arguments: `using`, and `cleanup`, what `cleanup_idempotency_keys` returns."""
