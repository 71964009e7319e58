"""This package has `IdempotencyMixin` for Django REST framework."""

from ..views import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
