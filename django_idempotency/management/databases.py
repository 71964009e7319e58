"""The databases that a command works on."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections, router

from ..models import IdempotencyKey
from .repeated import several

NO_ENGINE = "django.db.backends.dummy"
"""That of `"default": {}`, which Django advises where each app has an alias of its own."""


def add_arguments(parser: CommandParser) -> None:
    """Add `--database` and `--all-databases`, for `chosen`."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--database",
        action="append",
        help="Database alias. May be repeated. Default: the alias that keys are written to.",
    )
    either.add_argument(
        "--all-databases",
        action="store_true",
        help="Every alias on which the database routers allow the key table, one after the other. An alias that "
        "fails does not stop the others: its error goes to stderr, and the exit status is 1.",
    )


def chosen(options: dict[str, Any]) -> list[str | None]:
    """The aliases that the command was given. None is the one that keys are written to. Raises `CommandError`."""
    if options["all_databases"]:
        allowed: list[str | None] = [
            name
            for name in connections
            if connections[name].settings_dict["ENGINE"] != NO_ENGINE
            and router.allow_migrate_model(name, IdempotencyKey)
        ]
        if not allowed:
            raise CommandError("DATABASE_ROUTERS allow the key table on no database. Let allow_migrate() return True.")
        return allowed
    given = several(options["database"])
    aliases: list[str | None] = [None] if given is None else list(dict.fromkeys(given))
    return [known(alias) for alias in aliases]


def known(alias: str | None) -> str | None:
    """The alias; None is the one that keys are written to. Raises `CommandError` for an unknown one."""
    if alias is not None and alias not in connections:
        raise CommandError(f"There is no database {alias!r}. Known are: {', '.join(connections)}.")
    return alias
