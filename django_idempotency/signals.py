"""`key_event` reports what happens to keys, so that you can count events or send an alert.

An event that belongs to one of the package's transactions is sent after that transaction has ended. Within an outer
`atomic()` block, it is sent after the block's COMMIT. Receivers run in the request, so a slow receiver delays it; a
receiver's error is logged by `django.dispatch`, and the request continues. The sender is `IdempotencyKey`.
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = ["key_event"]

# Cached, because every request asks whether there are receivers.
key_event = Signal(use_caching=True)
"""Something has happened to a key. Arguments:

    event: one of these strings.

        "claimed": a worker has claimed the key. Leased mode sends this before the view runs, and atomic mode together
            with the outcome.
        "completed": the response is stored and will be replayed.
        "replayed": a retry got the stored response.
        "conflicted": a duplicate arrived while the first request was running.
        "mismatched": a key was sent again with a different request.
        "missing": a request without a key was refused with 400.
        "invalid": a request whose key cannot be used was refused with 400.
        "too_old": `late_keys="refuse"` refused a key that was unknown and too old.
        "replay_refused": a retry found a stored response, but `may_replay` refused to replay it.
        "busy": the store did not answer in time, or could not take a key. Nothing was done.
        "paused": `PAUSED` is on, and a request was refused before its key was read. Nothing has run.
        "unprotected": `ENABLED` is False or `observe` is True, and a request is about to run. Each retry runs, too.
        "error": the claim or the replay failed, for example because of the database, or because a response could not
            be decrypted. Nothing has run.
        "claim_lost": a backend lost the claim of a running request: by eviction, in a failover, or because its lease
            expired. A duplicate may have run in the meantime.
        "unstored": the backend did not store the result. The client got the response, and a retry may run again.
        "slow_call": a call ended after its attempt's lease had expired, so a retry could have made the same call in the
            meantime. Sent once for each operation and process.
        "released": the run ended without a final result. The next retry runs, unless a call in doubt prevents it.
        "taken_over": a lease expired, and a new attempt has the key. Sent instead of "claimed".
        "held": the effects of a call or a write are unknown, and the request failed or was refused. A person or
            `reconcile` must find out what happened.
        "purged": a cleanup has finished.

    using: the database alias. None for a key in a backend, and with "unprotected".
    backend: the backend that holds the key. None for a key in a database.
    identity: its `scope`, `operation` and `key` identify the request, and logs show its `reference` instead of the key.
        With "missing", "invalid", "paused" and "unprotected", only the operation is known, and the others are empty
        strings. None with "purged".
    attempt: with "claimed" and "taken_over", 1 for the first run and one more for each later run. Otherwise None.
    reason: with "released", "held", "error", "slow_call" and "unprotected", what happened, without any text from the
        client. Otherwise empty.
    resource: the object that `operation.refer_to` has stored, as a tuple of type and id, or None.
    cleanup: with "purged", what `cleanup_idempotency_keys` returns. Otherwise None.
"""
