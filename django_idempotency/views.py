"""This module has the mixin `IdempotencyMixin` for class-based views of plain Django.

Views of the REST framework use `django_idempotency.rest_framework.IdempotencyMixin`, its subclass.
"""

from .engine.declare.class_options import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
