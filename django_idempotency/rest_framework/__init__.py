"""Django REST framework: `IdempotencyMixin`. Import it only where the framework is installed."""

from .mixins import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
