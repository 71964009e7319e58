"""Times, operations and long texts as a person reads them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.test import override_settings

from django_idempotency.admin.texts import moment, readable_operation, shortened


@override_settings(TIME_ZONE="Europe/Berlin")
def test_times() -> None:
    """With seconds and zone. Without `USE_TZ`, Django does not know the zone."""
    assert moment(datetime(2026, 1, 2, 3, 4, 5, 999, tzinfo=UTC)) == "2026-01-02 04:04:05 CET"
    assert moment(datetime(2026, 1, 2, 3, 4, 5)) == "2026-01-02 03:04:05"
    assert moment(None) == "-"


@pytest.mark.parametrize(
    ("operation", "shown"),
    [
        ("POST orders/", "POST orders/"),
        ("POST orders/<int:pk>/", "POST orders/<int:pk>/"),
        ("POST ^orders/$", "POST orders/"),
        ("POST api/^orders/(?P<pk>[^/.]+)/refund/$", "POST api/orders/<pk>/refund/"),
        ("stripe", "stripe"),
        ("charge $", "charge"),
    ],
)
def test_operations(operation: str, shown: str) -> None:
    """Without the marks of a regular expression."""
    assert readable_operation(operation).strip() == shown


def test_long_texts() -> None:
    """Shortened, with the whole text as the title, escaped."""
    assert shortened("123456789012") == "123456789012"
    assert shortened("<23456789012>") == '<span title="&lt;23456789012&gt;">&lt;23456789012…</span>'
