"""Django Ninja: `idempotent_operation`. Import it only where the framework is installed."""

from .operations import idempotent_operation

__all__ = ["idempotent_operation"]
