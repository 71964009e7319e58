"""What can go wrong.

IdempotencyError
├── IdempotencyConfigurationError   a set-up that cannot work (also ImproperlyConfigured and TypeError)
├── ClaimLost                       the claimed row was gone when its result should have been kept
│   └── LeaseLost                   the lease had lapsed and somebody else took the key over (leased mode)
├── NotResolvable                   a person's decision came too late or too early (leased mode)
├── ResultNotStorable               a step's result is not JSON (also TypeError; leased mode)
├── TransactionBroken               the view hid a database error, so its writes could not be committed
└── NotRun                          `run_once` has neither run the work nor found its result
    ├── OperationInProgress         somebody else is running it right now: try again later
    ├── OutcomeUnknown              an external call is in doubt, and must not be made twice
    ├── PayloadMismatch             the key was used before, for another payload
    └── StoreBusy                   the store could not be asked in time (SQLite): try again later
"""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured


class IdempotencyError(Exception):
    """Base class of everything this package raises."""


class IdempotencyConfigurationError(IdempotencyError, ImproperlyConfigured, TypeError):
    """A decorator, mixin, option or setting was used in a way that cannot protect the view, or a migration is missing.

    Raised when the code is imported where that is possible, else on the first request, before the view runs.
    """


class ClaimLost(IdempotencyError):
    """The view deleted the row of its own claim (or truncated the table): nothing was committed."""


class LeaseLost(ClaimLost):
    """This worker's lease had lapsed and somebody else took the key over, or an operator decided its outcome.

    Nothing of the step that raised it was committed. Let it propagate: the client gets the winner's answer.
    """


class NotResolvable(IdempotencyError):
    """A key cannot be released, recorded or closed by hand now: somebody works on it, has done so, or has finished."""


class ResultNotStorable(IdempotencyError, TypeError):
    """A step returned something that is neither JSON nor a saved model instance, so a retry could not return it.

    The result of an external call: the step is marked as done, without a value. Of a local write: rolled back.
    """


class TransactionBroken(IdempotencyError):
    """The view caught a database error without an `atomic()` of its own around the failing statement.

    The database has discarded everything the view wrote, so answering with a success would be a lie.
    Nothing was committed, and the key is free for a retry.
    """


class NotRun(IdempotencyError):
    """`run_once` and `once`: the work did not run this time, and there is no result to return. Nothing was changed."""


class OperationInProgress(NotRun):
    """The same operation is being run right now. Try again later: a queue should deliver the message again."""


class OutcomeUnknown(NotRun):
    """An earlier attempt was interrupted in an external call, and `on_abandoned="hold"` forbids to make it again.

    It waits for `reconcile` or for a person. Trying again later does no harm.
    """


class PayloadMismatch(NotRun):
    """The key was used before for another payload. Trying again is of no use: somebody has mixed up keys."""


class StoreBusy(NotRun):
    """The store could not be asked in time (SQLite's write lock). Try again later."""
