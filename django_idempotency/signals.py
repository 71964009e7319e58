"""Signals about keys, to count, trace or alert.

Every signal is sent after the commit or the rollback that it reports. Inside an outer `atomic()` it is sent after the
commit of that block. Receivers run in the request. The log `django.dispatch` reports a receiver that raises, and the
request goes on; a slow receiver makes the request slow. The sender is `IdempotencyKey`.

All signals but `keys_purged` have these arguments:

    identity: its `scope`, `operation` and `key` name the request, its `reference` names the key in logs. Of
        `key_missing` and `key_invalid` it has the operation only: its other texts are empty.
    using: database alias.
    attempt: of `key_claimed` and `key_taken_over`: 1 for the first run, one more for each later run. Else None.
    resource: what the operation is about, as `operation.refer_to` has kept it: a tuple of type and id. Else None.
    reason: of `key_released`: what happened, without any text of the client. Else empty.
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = [
    "key_busy",
    "key_claimed",
    "key_completed",
    "key_conflicted",
    "key_held",
    "key_invalid",
    "key_mismatched",
    "key_missing",
    "key_released",
    "key_replay_refused",
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

key_missing = Signal(use_caching=True)
"""An endpoint that requires a key got a request without one. It was refused with 400."""

key_invalid = Signal(use_caching=True)
"""A request came with a text that is no usable key. It was refused with 400."""

key_replay_refused = Signal(use_caching=True)
"""A retry found a stored response, and the project's `may_replay` kept it back."""

key_busy = Signal(use_caching=True)
"""The store did not answer in time. Nothing has run, and it is not known whether the key was used before."""

key_released = Signal(use_caching=True)
"""The run ended without a final result. The next retry runs again, unless a call in doubt holds the key."""

key_taken_over = Signal(use_caching=True)
"""Leased mode, instead of `key_claimed`: an earlier attempt's lease had lapsed, and this attempt takes its place."""

key_held = Signal(use_caching=True)
"""A request was refused, or has failed, because it is unknown what took effect. A person has to find out."""

keys_purged = Signal(use_caching=True)
"""A cleanup has ended. Arguments: `using`, and `cleanup`, what `cleanup_idempotency_keys` returns."""
