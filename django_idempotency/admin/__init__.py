"""The admin pages for idempotency keys, which Django's admin imports automatically."""

from .model_admin import IdempotencyKeyAdmin

__all__ = ["IdempotencyKeyAdmin"]
