"""The exceptions of the package.

IdempotencyError
├── IdempotencyConfigurationError   a set-up that cannot work (also ImproperlyConfigured and TypeError)
├── ClaimLost                       the claimed row was gone when its result was to be stored
│   └── LeaseLost                   the lease was over and another worker took the key over (leased mode)
├── NotDecryptable                  what is stored for the key cannot be decrypted
├── NotResolvable                   the key cannot be resolved by hand now (leased mode)
├── ResultNotStorable               a step's result is not JSON, or too long (also TypeError; leased mode)
├── TransactionBroken               the view hid a database error, so its writes could not be committed
└── NotRun                          `run_once` has not run the work and has no stored result
    ├── OperationInProgress         another worker runs the operation right now: try again later
    ├── OutcomeUnknown              an external call is in doubt and must not be made twice
    ├── PayloadMismatch             the key was used before, for another payload
    └── StoreBusy                   the store did not answer in time (SQLite): try again later
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
    "ResultNotStorable",
    "StoreBusy",
    "TransactionBroken",
]


class IdempotencyError(Exception):
    """Base class of everything this package raises."""


class IdempotencyConfigurationError(IdempotencyError, ImproperlyConfigured, TypeError):
    """A decorator, mixin, option or setting cannot protect the view as it is used, or a migration is missing.

    Raised at import if possible, else on the first request, before the view runs.
    """


class ClaimLost(IdempotencyError):
    """The key's row was gone when the view ended, so nothing of the view's transaction was committed.

    The view has deleted the row, or has switched the connection to another schema or database.
    """


class LeaseLost(ClaimLost):
    """This worker's lease was over, and another worker has taken the key over, or a person has decided.

    The step has committed nothing. Let the error propagate, so that the client gets the other worker's answer.
    """


class NotDecryptable(IdempotencyError):
    """No key of `ENCRYPTION_KEYS` decrypts what is stored. The work does not run until the setting is right."""


class NotResolvable(IdempotencyError):
    """No decision is possible: a worker runs the operation, or has completed it, or another person was faster."""


class ResultNotStorable(IdempotencyError, TypeError):
    """A step returned a value that cannot be kept: neither JSON nor a saved model instance, or more than 1 MiB.

    An external call is marked as done, without a value. A local write is rolled back.
    """


class TransactionBroken(IdempotencyError):
    """The view caught a database error, such as a deadlock, with no `atomic()` of its own around the statement.

    All that the view wrote is lost, so an answer of success would be wrong. The key is free for a retry.

    If a statement such as `executescript` on SQLite has ended the transaction, the key is held for a person, because
    the view's later writes are committed. In leased mode, a `write` raises this exception.
    """


class NotRun(IdempotencyError):
    """The work of `run_once` or `once` did not run, and there is no stored result to return. Nothing was changed."""


class OperationInProgress(NotRun):
    """Another worker runs the same operation right now. Try again after `retry_after` seconds, 60 at most."""

    retry_after: int = 1


class OutcomeUnknown(NotRun):
    """An earlier attempt was interrupted, and it is unknown what took effect.

    Either `on_abandoned` is "hold" and an external call has no result, or the work has ended its own transaction and
    then failed. The key waits for `reconcile` or for a person. Try again later.
    """


class PayloadMismatch(NotRun):
    """The key was used before for another payload. A retry cannot succeed, because the sender has mixed up its keys."""


class StoreBusy(NotRun):
    """SQLite's write lock was not free, or a migration holds the key table. Try again later."""
