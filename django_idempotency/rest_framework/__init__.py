"""Django REST framework: `IdempotencyMixin`. Import it only where the framework is installed."""

from importlib.util import find_spec

if find_spec("rest_framework") is None:
    raise ModuleNotFoundError(
        "django_idempotency.rest_framework needs Django REST framework, which is not installed. "
        "Run: pip install djangorestframework",
        name="rest_framework",
    )

from ..views import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
