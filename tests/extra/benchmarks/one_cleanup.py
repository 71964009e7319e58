"""A cleanup on the database of DATABASE_URL, whichever it is: prints its figures as JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from random import getrandbits

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from django.db import connection
from django.test.runner import DiscoverRunner
from django.test.utils import setup_test_environment
from django.utils import timezone

from django_idempotency.models import IdempotencyKey
from tests.extra.benchmarks.cleanup import clean

AT_ONCE = 5000


def add(number: int, expires_in: timedelta) -> None:
    """Keys as `filling` makes them, by the ORM."""
    now = timezone.now()
    for start in range(0, number, AT_ONCE):
        IdempotencyKey.objects.bulk_create(
            IdempotencyKey(
                key_hash=getrandbits(63),
                scope_hash=getrandbits(63),
                scope=f"user:auth.User:{n % 1000}",
                operation="POST orders/",
                key=f"{getrandbits(128):036x}",
                fingerprint=getrandbits(256).to_bytes(32),
                status=IdempotencyKey.Status.COMPLETED,
                created_at=now,
                updated_at=now,
                completed_at=now,
                expires_at=now + expires_in + timedelta(milliseconds=n - number),
                status_code=201,
                headers='[["Content-Type", "application/json"]]',
                body=b'{"id": 1, "amount": 1000, "currency": "EUR"}',
            )
            for n in range(start, min(start + AT_ONCE, number))
        )


def main(expired: int, living: int) -> None:
    setup_test_environment(debug=False)
    runner = DiscoverRunner(verbosity=0, interactive=False)
    databases = runner.setup_databases()
    try:
        add(expired, timedelta(0))
        add(living, timedelta(days=1))
        found = clean("")
        assert found.rows == expired
        version = ".".join(str(part) for part in connection.get_database_version())
        name = f"{connection.display_name} {version}"
        print(
            json.dumps(
                {"database": name, "rows": found.rows, "rate": found.rate, "worst": found.worst, "grown": found.grown}
            )
        )
    finally:
        runner.teardown_databases(databases)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
