"""A pytest plugin for `tox run -e mutation`: no test may use the SQL that another one has made, before the fork."""

from __future__ import annotations


def pytest_runtest_setup() -> None:
    from django_idempotency.engine.stores import store_for

    store_for.cache_clear()  # with it goes the SQL
