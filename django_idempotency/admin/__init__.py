"""The admin pages of idempotency keys. Django's autodiscovery imports this package."""

from .model_admin import IdempotencyKeyAdmin

__all__ = ["IdempotencyKeyAdmin"]
