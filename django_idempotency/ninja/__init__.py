"""`idempotent_operation` for Django Ninja, which must be installed before this module is imported."""

from .operations import idempotent_operation

__all__ = ["idempotent_operation"]
