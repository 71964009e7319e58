"""What can go wrong.

IdempotencyError
├── IdempotencyConfigurationError   a set-up that cannot work (also ImproperlyConfigured and TypeError)
├── ClaimLost                       the claimed row was gone when its result should have been kept
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


class TransactionBroken(IdempotencyError):
    """The view caught a database error without an `atomic()` of its own around the failing statement.

    The database has discarded everything the view wrote, so answering with a success would be a lie.
    Nothing was committed, and the key is free for a retry.
    """
