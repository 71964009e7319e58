"""Django Ninja: `idempotent_operation`. Import it only where the framework is installed."""

from importlib.util import find_spec

if find_spec("ninja") is None:
    raise ModuleNotFoundError(
        "django_idempotency.ninja needs Django Ninja, which is not installed. Run: pip install django-ninja",
        name="ninja",
    )

from .operations import idempotent_operation

__all__ = ["idempotent_operation"]
