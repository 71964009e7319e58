"""`get_operation` and `request.idempotency`."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency import IdempotencyConfigurationError, get_operation


def test_outside_of_a_leased_view_there_is_no_operation(rf: Any) -> None:
    """And the error says how to get one."""
    with pytest.raises(IdempotencyConfigurationError, match="Protect the view with"):
        get_operation(rf.post("/"))
