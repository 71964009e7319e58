"""This module has the mixin `IdempotencyMixin` for class-based views of plain Django.

You can also import the same class from `django_idempotency.rest_framework`.
"""

from .engine.declare.class_options import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
