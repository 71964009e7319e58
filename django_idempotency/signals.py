"""This module has the signal `key_event`, which reports what happens to keys. For example, a receiver can count the
events or send an alert.

If an event belongs to a transaction of the package, the signal is sent after the end of this transaction. If an outer
`atomic()` block is open, the signal is sent after the COMMIT of the outer block. Receivers run in the request, so a
slow receiver makes the request slow. If a receiver raises an error, the logger `django.dispatch` logs the error, and
the request continues. The sender is `IdempotencyKey`.
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = ["key_event"]

# Every request checks whether the signal has receivers. With `use_caching=True`, this check is fast.
key_event = Signal(use_caching=True)
"""Says that something has happened to a key. Arguments:

    event: one of these texts.

        "claimed": a worker has claimed the key. Leased mode sends this event before the view runs. Atomic mode sends
            this event together with the event of the outcome.
        "completed": the response is stored and will be replayed.
        "replayed": a retry got the stored response.
        "conflicted": a duplicate came while the first request was running.
        "mismatched": a request used another request's key, with a different fingerprint.
        "missing": a request had no key, and was refused with 400.
        "invalid": a request had a key that cannot be used, and was refused with 400.
        "too_old": `late_keys="refuse"` has refused a key that was unknown and too old.
        "replay_refused": a retry found a stored response, and `may_replay` refused it.
        "busy": the store did not answer in time, or cannot take a key. Nothing was done.
        "paused": `PAUSED` is on, and a request was refused before its key was read. Nothing has run.
        "error": the claim or the replay failed with an error, such as a database error, or a response that cannot be
            decrypted. Nothing has run.
        "claim_lost": the claim of a running request was gone from its backend before the request ended: evicted, lost
            in a failover, or because the work took longer than its lease. A duplicate may have run meanwhile.
        "unstored": the backend did not take the result. The client got the response all the same, and a retry may run
            the work again.
        "released": the run ended without a final result. The next retry runs the work again, unless a call in doubt
            forbids that.
        "taken_over": the lease of an attempt was over, and a new attempt has taken over the key. In this case, the
            event "claimed" is not sent.
        "held": a request was refused or has failed, because the effects of a call or a write are not known. A person
            must find out what has happened.
        "purged": a cleanup has ended.

    using: database alias. None for a key in a backend.
    backend: the name of the backend that has the key. None for a key in a database.
    identity: its `scope`, `operation` and `key` name the request, and its `reference` names the key in logs. With
        "missing", "invalid" and "paused", only the operation is known, and the other texts are empty. None with
        "purged".
    attempt: 1 for the first run, and one more for each later run, with "claimed" and "taken_over". Else None.
    reason: with "released", "held" and "error", what happened, without any text of the client. Else empty.
    resource: what the operation is about, as `operation.refer_to` has stored it: a tuple of type and id. Else None.
    cleanup: with "purged", what `cleanup_idempotency_keys` returns. Else None.
"""
