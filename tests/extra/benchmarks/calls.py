"""How many calls of the package's functions one request makes: `python -m tests.extra.benchmarks.calls`, a few seconds.

A process that has just slept on a socket runs cold, so each further function costs more than a hot loop says. With
--names the functions are printed in the order of their calls.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

from tests.extra.benchmarks import stage

if __name__ == "__main__":
    stage.build()

from django.http import HttpRequest
from django.test import RequestFactory

import django_idempotency
from tests.extra.benchmarks.views import protected

HOME = str(Path(django_idempotency.__file__).parent)
WARM = 20
"""Requests before the counted one: connections, caches and prepared statements are made in the first ones."""


def request(key: str | None = None) -> HttpRequest:
    body, headers = json.dumps({"item": "tea", "quantity": 3}), {"Idempotency-Key": key or str(uuid4())}
    return RequestFactory().post("/orders/", body, content_type="application/json", headers=headers)


def calls_of(send: Callable[[], Any]) -> list[str]:
    """The file and name of each function of the package that `send` calls, in their order."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            called.append(f"{Path(frame.f_code.co_filename).relative_to(HOME)}: {frame.f_code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        send()
    finally:
        sys.setprofile(before)
    return called


def measured() -> tuple[list[str], list[str]]:
    """The calls of a first request and of a replay, of a plain view that is warm."""
    key = str(uuid4())
    for _ in range(WARM):
        protected(request())
        protected(request(key))
    first, replay = request(), request(key)
    return calls_of(lambda: protected(first)), calls_of(lambda: protected(replay))


def told() -> str:
    first, replay = measured()
    return f"Calls of the package's functions: {len(first)} for a first request, {len(replay)} for a replay."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print the functions, too")
    names = parser.parse_args().names
    first, replay = measured()
    for title, called in (("first request", first), ("replay", replay)):
        print(f"{title}: {len(called)} calls")
        if names:
            print("\n".join(f"  {name}" for name in called))


if __name__ == "__main__":
    main()
