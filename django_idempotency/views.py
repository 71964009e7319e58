"""`IdempotencyMixin` for class-based views of plain Django. `django_idempotency.rest_framework` also has this mixin."""

from .engine.declare.class_options import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
