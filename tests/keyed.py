"""Values of each type for a row whose primary key has a column of each type."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

PARTS: dict[str, Any] = {
    "at": datetime(2026, 11, 26, 10, 0, 0, 123456, tzinfo=UTC),
    "day": date(2026, 1, 1),
    "hour": time(23, 59, 59, 999999),
    "took": timedelta(days=1, microseconds=1),
    "price": Decimal("1.0123456789"),
    "ratio": 0.5,
    "uuid": UUID("8e03978e-40d5-43dd-bc93-6894a57f9324"),
    "name": "12",
    "number": 7,
}
