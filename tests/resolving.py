"""`manage.py resolve_idempotency_keys`: what it prints, and its exit status."""

from __future__ import annotations

import io
from typing import Any

from django.core.management import CommandError, call_command


def resolve(*args: str, out: Any = None) -> tuple[int, str]:
    """The exit status, and what was printed; an error's text stands at the end. By bob, for TICKET-1."""
    out = out or io.StringIO()
    try:
        call_command("resolve_idempotency_keys", "--reason=TICKET-1", "--by=bob", *args, stdout=out)
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()
