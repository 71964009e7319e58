"""Send a task so many times: `python -m tests.extra.projects.brokers.send ORDER NUMBER`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import django

django.setup()

from django.conf import settings  # noqa: E402


def main(order: str, number: int) -> None:
    recipe: Any = import_module(f"shop.{settings.RECIPE}")
    for _ in range(number):
        if settings.RECIPE == "celery_tasks":
            from tests.extra.projects.brokers.celery_app import app  # noqa: F401

            recipe.ship.delay(order)
        elif settings.RECIPE == "dramatiq_tasks":
            recipe.ship.send(order)
        elif settings.RECIPE == "huey_tasks":
            recipe.ship(order)
        elif settings.RECIPE == "procrastinate_tasks":
            recipe.ship.defer(order_id=order)
        elif settings.RECIPE == "tasks":
            recipe.ship.enqueue(order)
        else:
            from redis import Redis

            Redis.from_url(settings.REDIS).xadd("orders", {"id": order, "amount": 5})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
