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


class ReadsFromOther:
    """What names no alias is read from `other`, as from a replica."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"


class OtherIsWritten:
    """The default alias is read only."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "other"


class OtherIsRead:
    """Keys and orders are read from a replica, which is late."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label in ("django_idempotency", "shopapp") else None

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


class OrdersAreOnOther:
    """Orders are on another database than keys and users."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "shopapp" else None
