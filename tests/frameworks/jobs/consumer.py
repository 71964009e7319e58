"""A consumer of a log, as Kafka's are: works through the messages after its committed offset, then commits."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import django

django.setup()

from django_idempotency import once  # noqa: E402
from tests.shopapp.models import Order  # noqa: E402


@once(scope="orders", key=lambda message: message["id"], payload=lambda message: message)
def place(message: dict[str, str]) -> Order:
    order = Order.objects.create(reference=message["id"])
    crash("in the middle of the work of", message)
    return order


def crash(when: str, message: dict[str, str]) -> None:
    """Once at each of these moments."""
    crashed = Path(sys.argv[3], f"{when} {message['id']}")
    if not crashed.exists():
        crashed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main(log: Path, offset: Path) -> None:
    messages = log.read_text().splitlines()
    position = int(offset.read_text()) if offset.exists() else 0
    for line in messages[position:]:
        message = json.loads(line)
        place(message)
        crash("before the acknowledgement of", message)
        position += 1
        offset.write_text(str(position))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
