from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from django.db import connection

from tests.extra.projects.harness import Project, Site


@pytest.fixture(scope="module", autouse=True)
def _asked_for(request: pytest.FixtureRequest) -> None:
    """Each module here has a PROJECT. NEEDS names its packages, and SEED is code that runs on the new tables."""
    if "PROJECTS" not in os.environ:
        pytest.skip("NOT RUN: needs PROJECTS=1, as in tox run -e projects")
    if missing := [package for package in request.module.NEEDS if find_spec(package) is None]:
        pytest.skip(f"NOT RUN: {', '.join(missing)} missing")
    if connection.vendor != "postgresql":
        pytest.skip("about postgresql")


@pytest.fixture(scope="module")
def project(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[Project]:
    module: Any = request.module
    with django_db_blocker.unblock(), module.PROJECT.migrated(getattr(module, "SEED", "")) as migrated:
        yield migrated


@pytest.fixture(scope="module", params=[True, False], ids=["protected", "NOT protected"])
def site(request: pytest.FixtureRequest, project: Project) -> Iterator[Site]:
    with project.served(protected=request.param) as served:
        yield served
