"""A pytest plugin for `tox run -e mutation`, which runs the tests of one broken function in a fork of its process."""

from __future__ import annotations

import os

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that are named after the broken module, then the fastest: the first failure is the end."""
    from mutmut.state import state

    module = os.environ.get("MUTANT_UNDER_TEST", "").partition(".x")[0].rpartition(".")[2]
    words = [word for word in module.split("_") if word]
    seconds = state().duration_by_test  # a defaultdict: to read a new test's entry with [] would make mutmut skip it

    def later(item: pytest.Item) -> tuple[int, float]:
        return -sum(word in item.path.stem for word in words), seconds.get(item.nodeid, 0.0)

    items.sort(key=later)


def pytest_runtest_setup() -> None:
    """No test may use the SQL that another one has made before the fork."""
    from django_idempotency.engine.stores import store_for

    store_for.cache_clear()  # with it goes the SQL
