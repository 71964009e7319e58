"""Requests on the database of DATABASE_URL, whichever it is, beside its own bare view: prints its figures as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from django.db import connection
from django.test.runner import DiscoverRunner
from django.test.utils import setup_test_environment

from tests.extra.benchmarks.requests import request
from tests.extra.benchmarks.views import bare, protected


def main(rounds: int, each: int) -> None:
    setup_test_environment(debug=False)
    runner = DiscoverRunner(verbosity=0, interactive=False)
    databases = runner.setup_databases()
    try:
        done = str(uuid4())
        sends: dict[str, Callable[[], Any]] = {
            "bare view": lambda: bare(request()),
            "first request": lambda: protected(request()),
            "replay": lambda: protected(request(done)),
        }
        protected(request(done))
        microseconds: dict[str, list[float]] = {name: [] for name in sends}
        for _ in range(rounds):
            for name, send in sends.items():
                started = time.perf_counter()
                for _ in range(each):
                    assert send().status_code == 201
                microseconds[name].append((time.perf_counter() - started) / each * 1e6)
        version = ".".join(str(part) for part in connection.get_database_version())
        print(json.dumps({"database": f"{connection.display_name} {version}", "microseconds": microseconds}))
    finally:
        runner.teardown_databases(databases)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
