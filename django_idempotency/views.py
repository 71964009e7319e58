"""The mixin for class-based views of plain Django. The REST framework has the same one."""

from .engine.declare.class_options import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
