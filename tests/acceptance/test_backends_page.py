"""docs/backends.md: an ingestion view, a consumer, and a backend of the project's own."""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from django.core.management import call_command
from django.urls import clear_url_caches, path

from tests.acceptance.pages import ROOT


def test_keys_outside_the_database(run: Any, serve: Any, client: Any, monkeypatch: Any, settings: Any) -> None:
    """An ingestion view, a consumer, and a backend of the project's own: each event is published once.

    A message without a usable key, or whose work fails, stops no other. The command prints what the page shows.
    """
    published: list[tuple[bytes, str]] = []
    stored: dict[str, bytes] = {}

    def publish(body: bytes, *, message_id: str) -> int:
        published.append((body, message_id))
        return len(published)

    class Store:
        """A store of the project's: it locks a name, and has no clock here."""

        @contextmanager
        def locked(self, name: str) -> Iterator[SimpleNamespace]:
            write = lambda new, expires_in: stored.update({name: new})  # noqa: E731
            yield SimpleNamespace(read=partial(stored.get, name), write=write, delete=partial(stored.pop, name, None))

    broker = SimpleNamespace(publish=publish, open_store=lambda address: Store())
    monkeypatch.setitem(sys.modules, "shop.broker", broker)
    own = run("docs/backends.md", "shop/own_backend.py").StoreBackend
    monkeypatch.setitem(sys.modules, "shop.own_backend", SimpleNamespace(StoreBackend=own))
    configured = run("docs/backends.md", "shop/settings_of_backends.py").IDEMPOTENCY["BACKENDS"]
    assert configured["events"]["OPTIONS"].keys() == {"url", "prefix", "replicas"}
    ways = {"BACKEND": "shop.own_backend.StoreBackend", "OPTIONS": {"address": "here"}}
    settings.IDEMPOTENCY = {"BACKENDS": {"events": ways}}

    clear_url_caches()
    serve(path("ingest/", run("docs/backends.md", "shop/ingestion.py").ingest))
    sent = {"content_type": "text/plain", "headers": {"X-Event-Id": "e1"}}
    answers = [client.post("/ingest/", b"21 C", **sent) for _ in "12"]
    assert [(one.status_code, one.headers["Idempotency-Replayed"]) for one in answers] == [
        (202, "false"),
        (202, "true"),
    ]
    (console,) = re.findall(r"(?s)```console\n\$ python manage.py (.*?)```", (ROOT / "docs/backends.md").read_text())
    command, _, shown = console.partition("\n")
    out = io.StringIO()
    call_command(*shlex.split(command), stdout=out)
    assert out.getvalue() == shown
    acknowledged: list[Any] = []
    dead: list[Any] = []
    event, keyless, textless = {"id": "e2", "text": "22 C"}, {"id": ""}, {"id": "e3"}
    forwarding = run("docs/backends.md", "shop/forwarding.py")
    forwarding.consume([keyless, textless, event, event], acknowledged.append, dead.append)
    assert (acknowledged, [body for body, _ in published]) == ([event, event], [b"21 C", b"22 C"])
    assert dead == [keyless]
    assert len(stored) == 2
