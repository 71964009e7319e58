"""This package has the admin pages for idempotency keys. Django's admin imports this package automatically."""

from .model_admin import IdempotencyKeyAdmin

__all__ = ["IdempotencyKeyAdmin"]
