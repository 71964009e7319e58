"""This module has the exceptions of the package.

IdempotencyError
├── IdempotencyConfigurationError   a set-up that cannot work (also ImproperlyConfigured and TypeError)
├── ClaimLost                       the claimed row was gone when its result was to be stored
│   └── LeaseLost                   the lease was over and another worker took the key over (leased mode)
├── NotDecryptable                  what is stored for the key cannot be decrypted
├── NotResolvable                   the key cannot be resolved by hand now (leased mode)
├── ResultLost                      a call took effect, and its value could not be stored (leased mode)
├── ResultNotStorable               a step's result is not JSON, or too long (also TypeError; leased mode)
├── TransactionBroken               the view hid a database error, so its writes could not be committed
└── NotRun                          `run_once` has not run the work and has no stored result
    ├── OperationInProgress         another worker runs the operation right now: try again later
    ├── OutcomeUnknown              an external call is in doubt and must not be made twice
    ├── PayloadMismatch             the key was used before, for another payload
    └── StoreBusy                   the database cannot take a key now: try again later
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
    """All exceptions in `django_idempotency.exceptions` inherit from `IdempotencyError`."""


class IdempotencyConfigurationError(IdempotencyError, ImproperlyConfigured, TypeError):
    """A decorator, a mixin, an option or a setting is wrong, or a migration is missing.

    This error is raised at import if possible. Otherwise the first request gets this error before the view runs.
    """


class ClaimLost(IdempotencyError):
    """The key's row was missing when the view ended, so the view's transaction was rolled back.

    For example, the view has deleted the row, or has switched the connection to another schema or database.
    """


class LeaseLost(ClaimLost):
    """This worker's lease has ended. In this case, another worker has taken over the key, or a person has decided about
    the key.

    The step has committed nothing. Do not catch `LeaseLost`, because the package must answer the client.
    """


class NotDecryptable(IdempotencyError):
    """No key of `ENCRYPTION_KEYS` can decrypt the stored data. The work does not run until `ENCRYPTION_KEYS` is
    correct.
    """


class NotResolvable(IdempotencyError):
    """A decision about this key is not possible. For example, a worker has the key, or another person has already
    decided.
    """


class ResultLost(IdempotencyError):
    """An earlier attempt made this call, and the value that it returned could not be stored.

    The call is not repeated, and no answer of the view completes the key. A person can enter the value with
    `maintenance.record_outcome` or in the admin, and so can `reconcile`.
    """


class ResultNotStorable(IdempotencyError, TypeError):
    """A result must be JSON or a saved model instance. The result of a step can have at most 1 MiB.

    If the result of a `call` step cannot be stored, the call is done, but its result is lost. A `write` step is rolled
    back if its result cannot be stored.
    """


class TransactionBroken(IdempotencyError):
    """A statement in the view failed with a database error, such as a deadlock. The view caught the error, but the
    statement was not inside its own `atomic()` block.

    All writes of the view are lost, so a success response would be wrong. A retry can claim the key again.

    If a statement such as SQLite's `executescript` ends the transaction, each write after this statement is committed
    immediately. Then a person must decide about the key. In leased mode, only `write` steps raise `TransactionBroken`.
    """


class NotRun(IdempotencyError):
    """The package did not run the work, and has no stored result to return. Nothing was changed."""


class OperationInProgress(NotRun):
    """Another worker is running this operation with this key. Try again in `retry_after` seconds, at most 60."""

    retry_after: int = 1


class OutcomeUnknown(NotRun):
    """An earlier attempt was interrupted, and its effects are unknown.

    A call without a result causes it under `on_abandoned="hold"`, and under "retry-keyed" if the other system could not
    recognize a second start; so does work that ends the transaction in which it runs, and then fails. A person or
    `reconcile` must decide about the key.
    """


class PayloadMismatch(NotRun):
    """The sender has used one key for two different payloads. A retry with the second payload cannot succeed."""


class StoreBusy(NotRun):
    """The database cannot take a key now, and nothing was done. Try again later.

    Another connection has SQLite's write lock, a migration has locked the key table, or the database cannot be reached,
    has no connection left or is read-only. On PostgreSQL, work that sends DEALLOCATE ALL is rolled back and raises it
    once on each connection. `IDEMPOTENCY["PAUSED"]` raises it, too.
    """
