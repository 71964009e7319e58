"""Support of Django Ninja: `idempotent_operation`. Import this package only if the framework is installed."""

from .operations import idempotent_operation

__all__ = ["idempotent_operation"]
