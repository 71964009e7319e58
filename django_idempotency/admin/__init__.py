"""The admin pages of idempotency keys. Django finds them by the name of this package."""

from .bodies import readable_body
from .model_admin import IdempotencyKeyAdmin

__all__ = ["IdempotencyKeyAdmin", "readable_body"]
