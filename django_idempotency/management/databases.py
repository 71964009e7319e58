"""Database aliases that a command is given."""

from __future__ import annotations

from django.core.management.base import CommandError
from django.db import connections


def known(alias: str | None) -> str | None:
    """The alias; None is the one that keys are written to. Raises `CommandError` for an unknown one."""
    if alias is not None and alias not in connections:
        raise CommandError(f"There is no database {alias!r}. Known are: {', '.join(connections)}.")
    return alias
