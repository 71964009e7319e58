"""The exceptions of the package.

IdempotencyError
├── IdempotencyConfigurationError   a setup that cannot work (also ImproperlyConfigured and TypeError)
├── ClaimLost                       the claimed row was gone before its result could be stored
│   └── LeaseLost                   the lease expired and another worker took the key over (leased mode)
├── NotDecryptable                  what is stored for the key cannot be decrypted
├── NotResolvable                   the key cannot be resolved by hand now (leased mode)
├── ResultLost                      a call took effect, but its value could not be stored (leased mode)
├── ResultNotStorable               a step's result is not JSON, or too long (also TypeError; leased mode)
├── TransactionBroken               the view hid a database error, so its writes could not be committed
└── NotRun                          `run_once` has not run the work and has no stored result
    ├── OperationInProgress         another worker is running the operation: try again later
    ├── OutcomeUnknown              an external call is in doubt and must not be made twice
    ├── PayloadMismatch             the key was used before, with a different payload
    └── StoreBusy                   the database cannot accept a key at the moment: try again later
"""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

__all__ = [
    "ClaimLost",
    "IdempotencyConfigurationError",
    "IdempotencyError",
    "LeaseLost",
    "NotDecryptable",
    "NotResolvable",
    "NotRun",
    "OperationInProgress",
    "OutcomeUnknown",
    "PayloadMismatch",
    "ResultLost",
    "ResultNotStorable",
    "StoreBusy",
    "TransactionBroken",
]


class IdempotencyError(Exception):
    """The base class for all of this package's exceptions."""


class IdempotencyConfigurationError(IdempotencyError, ImproperlyConfigured, TypeError):
    """A decorator, a mixin, an option or a setting is wrong, or a migration is missing.

    Raised at import if possible, otherwise on the first request, before the view runs.
    """


class ClaimLost(IdempotencyError):
    """The key's row was gone when the view ended, and the view's transaction was rolled back.

    The view may have deleted the row, or switched the connection to another schema or database.
    """


class LeaseLost(ClaimLost):
    """This worker has lost the key: its lease expired and another worker took over, or a person resolved the key.

    The current step has committed nothing. Don't catch this exception: the package must answer the client.
    """


class NotDecryptable(IdempotencyError):
    """No key in `ENCRYPTION_KEYS` can decrypt the stored data. The work does not run until you add a key that can."""


class NotResolvable(IdempotencyError):
    """This key cannot be resolved now: a worker may be holding it, or another person may already have resolved it."""


class ResultLost(IdempotencyError):
    """An earlier attempt made this call, but its return value could not be stored.

    The call is not repeated, and the key stays unfinished whatever the view returns. A person can enter the value with
    `maintenance.record_outcome` or in the admin, or `reconcile` can enter it.
    """


class ResultNotStorable(IdempotencyError, TypeError):
    """A result is of the wrong type (neither JSON nor a saved model instance), or a step's result exceeds 1 MiB.

    If this happens in a `write` step, the step is rolled back. In a `call` step, the call has already been made, and
    its result is lost.
    """


class TransactionBroken(IdempotencyError):
    """The view caught a database error, such as a deadlock, without wrapping the query in its own `atomic()` block.

    All of the view's writes are lost, so a success response would be wrong. A retry can claim the key again.

    If a statement such as SQLite's `executescript` ends the transaction, each later write is committed immediately, and
    a person must resolve the key. In leased mode, only `write` steps raise this exception.
    """


class NotRun(IdempotencyError):
    """The work was not run, and there is no stored result to return. Nothing was changed."""


class OperationInProgress(NotRun):
    """Another worker is running this operation with this key. Try again after `retry_after` seconds (60 at most)."""

    retry_after: int = 1


class OutcomeUnknown(NotRun):
    """An earlier attempt was interrupted, and its effects are unknown.

    There are two causes: a call has no result and must not be repeated, or the work ended its own transaction and then
    failed. With `on_abandoned` set to "hold", no such call is repeated. With "retry-keyed", a call is not repeated if
    the called service would not recognize the second one. A person or `reconcile` must resolve the key.

    Raise this exception in `reconcile` if the called service can't tell yet. Retries then get 409 `outcome-unknown`,
    nothing runs, and no error is logged.
    """


class PayloadMismatch(NotRun):
    """The sender used the same key for two different payloads. A retry with the second payload cannot succeed."""


class StoreBusy(NotRun):
    """The database cannot accept a key at the moment, and nothing was done. Try again later.

    Another connection may hold SQLite's write lock, a migration may have locked the key table, or the database may be
    unreachable, read-only or out of connections. On PostgreSQL, work that sends DEALLOCATE ALL is rolled back and
    raises this exception once on each connection. `IDEMPOTENCY["PAUSED"]` also raises it.
    """
