"""A consumer that publishes an event of its own: in `on_commit`, or by the outbox of docs/events.md.

`-m tests.frameworks.jobs.publisher FOLDER consume-and-publish|consume|relay [PLACE]`: there, the process is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import django

django.setup()

from django.db import transaction  # noqa: E402

from django_idempotency import once  # noqa: E402
from tests.acceptance.pages import blocks  # noqa: E402
from tests.shopapp import models  # noqa: E402

FOLDER, DOING, PLACE = Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
EVENT = {"id": "evt_1", "order": "a book", "amount": 5}


def at(place: str) -> None:
    if place == PLACE:
        os.kill(os.getpid(), signal.SIGKILL)


def publish(payload: dict[str, Any]) -> None:
    at("before it is published")
    with open(FOLDER / "published", "a") as file:
        file.write(json.dumps(payload) + "\n")
    at("after it is published")


@once(scope="queue", key=lambda event: event["id"])
def place_order(event: dict[str, Any]) -> int:
    """Without an outbox."""
    order = models.Order.objects.create(reference=event["order"], amount=event["amount"])
    transaction.on_commit(partial(publish, {"id": f"placed-{order.pk}", "order": order.pk}))
    return int(order.pk)


def recipe() -> Any:
    sys.modules["shop"], sys.modules["shop.models"] = ModuleType("shop"), models
    module = ModuleType("outbox")
    exec(blocks("docs/events.md")["shop/outbox.py"], vars(module))
    return module


def main() -> None:
    if DOING == "consume-and-publish":
        place_order(EVENT)
    elif DOING == "consume":
        recipe().place_order(EVENT)
        at("after the COMMIT")
    else:
        recipe().relay(publish)


if __name__ == "__main__":
    main()
