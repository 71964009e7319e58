"""`manage.py resolve_idempotency_keys`: what it prints, and its exit status."""

from __future__ import annotations

import io
from typing import Any

from django.core.management import CommandError, call_command

from django_idempotency.models import IdempotencyKey, IdempotencyStep


def resolve(*args: str, out: Any = None) -> tuple[int, str]:
    """The exit status, and what was printed; an error's text stands at the end. By bob, for TICKET-1."""
    out = out or io.StringIO()
    try:
        call_command("resolve_idempotency_keys", "--reason=TICKET-1", "--by=bob", *args, stdout=out)
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()


def rows() -> list[dict[str, Any]]:
    return [*IdempotencyKey.objects.order_by("pk").values(), *IdempotencyStep.objects.order_by("pk").values()]


def listed(*args: str) -> list[str]:
    keys = {str(key.pk): key.key for key in IdempotencyKey.objects.all()}
    lines = [line for line in resolve(*args)[1].splitlines() if ", policy " in line and "selects nothing" not in line]
    return sorted(keys[line.split()[0]] for line in lines)


def get(key: str) -> IdempotencyKey:
    return IdempotencyKey.objects.get(key=key)
