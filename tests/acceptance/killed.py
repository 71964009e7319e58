"""A worker that runs a documented view, and is killed in its call of the gateway.

python -m tests.acceptance.killed PAGE BLOCK BOOK before|after
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.acceptance.pages import blocks


class Gateway(ModuleType):
    """Its book is a file, which outlives the worker that it kills: a line for each charge."""

    def __init__(self, book: Path, *, kills: str = "") -> None:
        super().__init__("shop.gateway")
        self.book, self.kills = book, kills

    def charges(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.book.read_text().splitlines()] if self.book.exists() else []

    def find(self, name: str) -> dict[str, Any] | None:
        return next((charge for charge in self.charges() if charge["for"] == name), None)

    def charge(self, amount: int, *, idempotency_key: str = "", reference: str = "") -> dict[str, Any]:
        """It honours a key, and ignores a reference."""
        if self.kills == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        charge = self.find(idempotency_key) or self.add(idempotency_key or reference)
        if self.kills == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return charge

    def add(self, name: str) -> dict[str, Any]:
        charge = {"id": f"ch_{len(self.charges()) + 1}", "for": name}
        with self.book.open("a") as book:
            book.write(json.dumps(charge) + "\n")
        return charge


def documented(page: str, block: str, gateway: Gateway) -> ModuleType:
    """The block as a module of a project with this gateway."""
    sys.modules["shop"] = shop = ModuleType("shop")
    shop.gateway = gateway  # type: ignore[attr-defined]
    module = ModuleType("documented")
    exec(compile(blocks(page)[block], f"{page}:{block}", "exec"), vars(module))
    return module


def main(page: str, block: str, book: str, kills: str) -> None:
    import django

    django.setup()
    from django.conf import settings
    from django.test import Client
    from django.urls import path

    settings.ROOT_URLCONF = urls = ModuleType("documented_urls")
    urls.urlpatterns = [path("pay/", documented(page, block, Gateway(Path(book), kills=kills)).pay)]  # type: ignore[attr-defined]
    settings.ALLOWED_HOSTS = ["*"]
    Client().post("/pay/", headers={"Idempotency-Key": "one"})


if __name__ == "__main__":
    main(*sys.argv[1:])
