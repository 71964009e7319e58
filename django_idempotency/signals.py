"""What happens to keys, for whoever counts, traces or alerts.

Every signal is sent after commit, or after the rollback that it tells of; inside an outer `atomic()`, after that one's
commit. Receivers run in the request: one that raises is logged on `django.dispatch` and does no harm, one that is slow
makes the request slow. The sender is `IdempotencyKey`. All but `keys_purged` have the arguments

    identity: whose `scope`, `operation` and `key` say what was asked for, and `reference` names the key in logs.
    using: database alias.
    attempt: of `key_claimed` and `key_taken_over`: 1 for the first run, growing with every later one; else None.
    reason: of `key_released`: what happened, without any text of the client's; else empty.
"""

from __future__ import annotations

from django.dispatch import Signal

# use_caching: whether anybody listens is asked in every request.
key_claimed = Signal(use_caching=True)
"""Somebody is running the key: in atomic mode together with what it came to, in leased mode before the view runs."""

key_completed = Signal(use_caching=True)
"""The response is stored and will be replayed."""

key_replayed = Signal(use_caching=True)
"""A retry got the stored response."""

key_conflicted = Signal(use_caching=True)
"""A duplicate met the first request while it was still running."""

key_mismatched = Signal(use_caching=True)
"""A key came again with another payload."""

key_released = Signal(use_caching=True)
"""What ran is no final answer. The next retry runs again, unless a call in doubt holds the key."""

key_taken_over = Signal(use_caching=True)
"""Instead of `key_claimed`, in leased mode: an earlier attempt's lease had lapsed, and this one takes its place."""

key_held = Signal(use_caching=True)
"""Leased mode: a retry was refused because nobody knows the outcome of an external call. A person has to look."""

keys_purged = Signal(use_caching=True)
"""A cleanup has ended. Arguments: `using`, and `cleanup`, what `cleanup_idempotency_keys` returns."""
