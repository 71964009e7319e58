"""What can go wrong.

IdempotencyError
├── IdempotencyConfigurationError   a set-up that cannot work (also ImproperlyConfigured and TypeError)
├── ClaimLost                       the claimed row was gone when its result should have been kept
│   └── LeaseLost                   the lease had lapsed and somebody else took the key over (leased mode)
├── ResultNotStorable               a step's result is not JSON (also TypeError; leased mode)
└── TransactionBroken               the view hid a database error, so its writes could not be committed
"""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured


class IdempotencyError(Exception):
    """Base class of everything this package raises."""


class IdempotencyConfigurationError(IdempotencyError, ImproperlyConfigured, TypeError):
    """A decorator, mixin, option or setting was used in a way that cannot protect the view.

    Raised when the code is imported where that is possible, else on the first request, before the view runs.
    """


class ClaimLost(IdempotencyError):
    """The view deleted the row of its own claim (or truncated the table): nothing was committed."""


class LeaseLost(ClaimLost):
    """This worker's lease had lapsed and somebody else took the key over, or an operator decided its outcome.

    Nothing of the step that raised it was committed. Let it propagate: the client gets the winner's answer.
    """


class ResultNotStorable(IdempotencyError, TypeError):
    """A step returned something that is neither JSON nor a saved model instance, so a retry could not return it.

    The result of an external call: the step is marked as done, without a value. Of a local write: rolled back.
    """


class TransactionBroken(IdempotencyError):
    """The view caught a database error without an `atomic()` of its own around the failing statement.

    The database has discarded everything the view wrote, so answering with a success would be a lie.
    Nothing was committed, and the key is free for a retry.
    """
