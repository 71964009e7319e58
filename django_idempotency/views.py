"""`IdempotencyMixin` for plain Django's class-based views.

REST framework views use its subclass, `django_idempotency.rest_framework.IdempotencyMixin`.
"""

from .engine.declare.class_options import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
