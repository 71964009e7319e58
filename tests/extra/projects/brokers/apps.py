from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.conf import settings


class ShopConfig(AppConfig):
    name = "tests.extra.projects.brokers"

    def ready(self) -> None:
        if settings.RECIPE == "dramatiq_tasks":
            import dramatiq
            from dramatiq.brokers.redis import RedisBroker

            # A worker whose heart has not beaten for 2 seconds is dead, and each command looks for one.
            dramatiq.set_broker(RedisBroker(url=settings.REDIS, heartbeat_timeout=2000, maintenance_chance=1_000_000))
        import_module(f"shop.{settings.RECIPE}")
