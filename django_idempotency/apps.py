from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from django.apps import AppConfig, apps
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
        if apps.is_installed("drf_spectacular"):
            import_module("django_idempotency.rest_framework.schema").install()


def _rest_framework() -> Framework:
    from .rest_framework import framework

    return framework


def _ninja() -> Framework:
    from .ninja import framework

    return framework
