"""What the package exports."""

from __future__ import annotations

import pytest

import django_idempotency
from django_idempotency.engine.conf import (
    settings,
)


def test_the_public_names() -> None:
    """Exported, and nothing else."""
    for name in django_idempotency.__all__:
        assert getattr(django_idempotency, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'run'"):
        django_idempotency.run  # noqa: B018
    assert settings().header_meta == "HTTP_IDEMPOTENCY_KEY"
