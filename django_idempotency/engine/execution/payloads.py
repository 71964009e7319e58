"""What makes two payloads of `run_once` equal? A redelivery has the same fingerprint as the first delivery.

A task is often queued with values from a form. When it is delivered again, it may carry the same values as read from
the database. Moments are therefore compared as instants, regardless of their time zone. Numbers and Decimals are
compared by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from ...exceptions import IdempotencyConfigurationError
from ..protocol.versions import Fingerprint, exact, fingerprint, versioned


def payload_fingerprint(payload: Any) -> Fingerprint:
    """Return the fingerprint of bytes, or of a value that Django can encode as JSON.

    Raises:
        IdempotencyConfigurationError: the payload is neither.
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return fingerprint("payload bytes", bytes(payload))
    try:
        text = versioned(_json(_with_integers(payload), _by_value), _json(payload, _as_written))
    except (TypeError, ValueError, RecursionError) as error:
        raise IdempotencyConfigurationError(f"payload={payload!r:.200} is neither bytes nor JSON: {error}") from error
    return fingerprint("payload", text)


def _json(payload: Any, default: Callable[[Any], Any]) -> str:
    return json.dumps(payload, sort_keys=True, separators=(",", ":"), default=default)


def _with_integers(value: Any) -> Any:
    """Turn floats such as 10.0 into integers, because a JSON number says nothing about its type."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {name: _with_integers(item) for name, item in value.items()}
    return [_with_integers(item) for item in value] if isinstance(value, (list, tuple)) else value


def _by_value(value: Any) -> Any:
    """Encode a value that JSON cannot represent. Equal values are encoded in the same way."""
    if isinstance(value, Decimal) and value.is_finite():
        return exact(str(value))
    if isinstance(value, datetime) and value.tzinfo is not None:
        with suppress(OverflowError):  # near the first or the last possible date, the moment may not exist in UTC
            value = value.astimezone(UTC)
    return _as_written(value)


def _as_written(value: Any) -> Any:
    """Encode a value as it is. Keep a timestamp's microseconds, which Django's encoder truncates."""
    text = DjangoJSONEncoder().default(value)
    # Django's encoder truncates microseconds to milliseconds. `isoformat()` is used only if digits would be lost, so
    # that old fingerprints remain valid.
    return value.isoformat() if isinstance(value, (datetime, time)) and value.microsecond % 1000 else text
