"""What happens to a delivery of the recipe's task: it is written down, takes its time, or kills its process.

The name of an order contains what happens to its first delivery.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models.signals import post_save

from django_idempotency import NotRun
from tests.shopapp.models import Order

FOLDER = Path(os.environ["DELIVERIES"])


def delivered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Stands above `@once` in the recipe."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        (given,) = (*args, *kwargs.values())
        order = given["id"] if isinstance(given, dict) else given
        note("delivered", order)
        at("dies-before-the-claim", order)
        try:
            value = function(*args, **kwargs)
        except NotRun:
            note("not now", order)
            raise
        note("returned", order)
        return value

    return wrapper


def note(what: str, order: str) -> None:
    with open(FOLDER / "deliveries", "a") as file:
        file.write(f"{order}|{what}|{os.getpid()}\n")


def met(order: str) -> bool:
    """Another delivery has come while this one works, and was told "not now" where it does not wait."""
    text = (FOLDER / "deliveries").read_text()
    return f"{order}|not now|" in text if "without-wait" in order else text.count(f"{order}|delivered|") > 1


def at(place: str, order: str) -> None:
    """The first delivery only."""
    first = FOLDER / f"{order}, which {place}"
    if place not in order or first.exists():
        return
    first.touch()
    if place == "is-slow":
        while not met(order):
            time.sleep(0.01)  # between two looks, not instead of one
        return
    note(place.partition("-")[0], order)
    if place == "waits-to-be-killed":
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)


def _saved(instance: Order, **_: Any) -> None:
    order = instance.reference.removeprefix("shipped ")
    for place in ("dies-before-the-COMMIT", "waits-to-be-killed", "is-slow"):
        at(place, order)
    transaction.on_commit(partial(at, "dies-after-the-COMMIT", order))


post_save.connect(_saved, sender=Order)
