"""`IdempotencyMixin` for Django REST framework."""

from .mixins import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
