from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from .engine.declare.frameworks import Framework


class IdempotencyAppConfig(AppConfig):
    name = "django_idempotency"
    verbose_name = _("Idempotency keys")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks
        from .engine.declare import frameworks

        checks.register()
        frameworks.register("rest_framework", _rest_framework)
        frameworks.register("ninja", _ninja)


def _rest_framework() -> Framework:
    from .rest_framework import view_call

    return view_call


def _ninja() -> Framework:
    from .ninja import operations

    return operations
