"""This package has the admin pages for idempotency keys. The autodiscovery of Django's admin imports this package."""

from .model_admin import IdempotencyKeyAdmin

__all__ = ["IdempotencyKeyAdmin"]
