"""Who catches what."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from django_idempotency import (
    IdempotencyConfigurationError,
    NotRun,
    OperationInProgress,
    OutcomeUnknown,
    PayloadMismatch,
    StoreBusy,
)


def test_a_set_up_error_is_djangos_and_pythons() -> None:
    """Whoever catches either gets it."""
    assert issubclass(IdempotencyConfigurationError, ImproperlyConfigured)
    assert issubclass(IdempotencyConfigurationError, TypeError)


def test_the_exceptions_have_one_base() -> None:
    """For a consumer that only wants to know whether to acknowledge."""
    assert all(issubclass(e, NotRun) for e in (OperationInProgress, OutcomeUnknown, PayloadMismatch, StoreBusy))
