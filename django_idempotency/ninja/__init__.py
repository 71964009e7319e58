"""This package has `idempotent_operation` for Django Ninja. Import this package only if Django Ninja is installed."""

from .operations import idempotent_operation

__all__ = ["idempotent_operation"]
