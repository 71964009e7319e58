"""Support of Django REST framework: `IdempotencyMixin`."""

from ..views import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
