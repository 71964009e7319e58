"""The admin pages for idempotency keys, which Django's admin imports by itself."""

from .model_admin import IdempotencyKeyAdmin

__all__ = ["IdempotencyKeyAdmin"]
