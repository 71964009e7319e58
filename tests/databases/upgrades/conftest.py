from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection

from tests.databases.upgrades.releases import Release, previous_release, succeed


@pytest.fixture
def release_0_4_0(tmp_path: Path, transactional_db: None) -> Iterator[Release]:
    """0.4.0, with the tables as its own migration makes them."""
    release = Release(previous_release(tmp_path / "0.4.0"))
    call_command("migrate", "django_idempotency", "zero", verbosity=0)
    connection.close()
    try:
        succeed(release.manage("migrate", "django_idempotency"))
        yield release
    finally:
        call_command("migrate", "django_idempotency", verbosity=0)
