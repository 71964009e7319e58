"""Reading the key of a request. What a header may hold is in tests/unit/test_key_syntax.py and test_conformance.py."""

from __future__ import annotations

import pytest

from django_idempotency import IdempotencyConfigurationError
from tests.http import posting_to_a_view

pytestmark = pytest.mark.django_db


def test_a_key_of_the_projects_own_must_be_text() -> None:
    """callable(request) -> str or None."""
    with pytest.raises(IdempotencyConfigurationError, match="return a str or None"):
        posting_to_a_view(key=lambda request: 5)()
    assert posting_to_a_view(key=lambda request: "a b")().status_code == 400
