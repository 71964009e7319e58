"""A pytest plugin for `tox run -e mutation`: its processes are forks, and must not use what was made before."""

from __future__ import annotations


def pytest_sessionstart() -> None:
    from django_idempotency.stores import store_for  # Django is ready only now

    store_for.cache_clear()  # with it goes the SQL
