"""Database routers."""

from __future__ import annotations

from typing import Any


class NoKeys:
    """Keeps the key table out of every database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "django_idempotency" else None
