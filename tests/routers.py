"""Database routers."""

from __future__ import annotations

from typing import Any


class NoKeys:
    """Keeps the key table out of every database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "django_idempotency" else None


class KeysOnOther:
    """Keeps the key table on one of two databases."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == "other" if app_label == "django_idempotency" else None


class OtherIsAReplica:
    """As Django's documentation has it: users are read from either alias, and written to the default one."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


class OtherIsWritten:
    """The default alias is read only."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "other"
