"""Keys to be cleaned up, and the command that does it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.core.management import call_command
from django.db import connections
from django.utils import timezone

from django_idempotency.engine.protocol.digests import key_hash
from django_idempotency.models import IdempotencyKey
from tests.step_rows import add_step


def make_keys(
    count: int, *, age: timedelta = timedelta(days=2), status: str = "completed", using: str = "default"
) -> None:
    now = timezone.now()
    keys = IdempotencyKey.objects.using(using)
    start = keys.count()
    keys.bulk_create(
        IdempotencyKey(
            key_hash=number,
            scope_hash=number,
            scope="s",
            operation="POST orders/",
            key=str(number),
            status=status,
            status_code=201,
            created_at=now - age,
            updated_at=now - age,
            expires_at=now - age + timedelta(days=1),
        )
        for number in range(start, start + count)
    )


def run(*args: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("cleanup_idempotency_keys", *args, stdout=out, **options)
    return out.getvalue()


def make_leased(
    key: str,
    status: str,
    *,
    lapsed: bool | None = None,
    doubt: bool = False,
    call: bool = True,
    expired: bool = True,
    using: str = "default",
) -> None:
    """A key with a finished write, and with a call, if wanted: finished, or in doubt."""
    now = timezone.now()
    row = IdempotencyKey.objects.using(using).create(
        key_hash=key_hash(key),
        scope_hash=-1,
        scope="s",
        operation="POST pay/",
        key=key,
        policy="hold",
        status=status,
        status_code=201 if status == "completed" else None,
        last_error="It broke." if status == "failed" else None,
        created_at=now - timedelta(days=2),
        updated_at=now - timedelta(days=2),
        expires_at=now + timedelta(days=-1 if expired else 1),
        locked_until=None if lapsed is None else now + timedelta(hours=-1 if lapsed else 1),
    )
    add_step(row, "write", "write", finished_at=now, result="{}")
    if call:
        add_step(row, "call", finished_at=None if doubt else now, result=None if doubt else "{}")
        if status == "failed":
            IdempotencyKey.objects.using(using).filter(pk=row.pk).update(attention_at=now - timedelta(days=2))


@contextmanager
def without_tables(alias: str) -> Iterator[None]:
    """The key table has another name meanwhile."""
    table = connections[alias].ops.quote_name(IdempotencyKey._meta.db_table)

    def rename(*names: str) -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute("ALTER TABLE {} RENAME TO {}".format(*names))

    rename(table, "hidden")
    try:
        yield
    finally:
        rename("hidden", table)
