"""On PostgreSQL the races of atomic mode run twice: by the functions of the schema, and by statements."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from tests.functions import WAYS, going

ATOMIC = ("test_atomic", "test_postgresql", "test_postgresql_locks", "test_stores")
"""The modules with races of atomic mode."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "way" in metafunc.fixturenames and connection.vendor == "postgresql":
        twice = metafunc.module.__name__.rpartition(".")[2] in ATOMIC
        metafunc.parametrize("way", WAYS if twice else WAYS[:1], indirect=True)


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with going(getattr(request, "param", "statements")):
        yield
