"""This module has the mixin `IdempotencyMixin` for class-based views of plain Django.

The module `django_idempotency.rest_framework` has the same `IdempotencyMixin`.
"""

from .engine.declare.class_options import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
