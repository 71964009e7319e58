"""docs/commands.md shows what the commands print, and other pages print the same: each runs here, in that order."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.db.models import F
from django.urls import path

from django_idempotency import idempotent
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key, scope_of_user
from tests.acceptance.pages import samples
from tests.backends import free_port
from tests.factories import UserFactory
from tests.views import creates

SHOWN = samples("docs/commands.md")
SERVER, CHECK = "idempotency_metrics", "check "
"""A server, which a signal has to end, and Django's own command, which `test_new_project.py` types."""


def not_yet(operation: Any) -> None:
    """A `reconcile` that leaves the key to the next retry."""


def keys() -> None:
    """A charge in doubt for an hour, an expired key, and a key that ran again after a rename."""
    ada = scope_of_user(UserFactory(username="ada"))
    create_key("expired")
    IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(days=2))
    create_key(
        "basket", scope=ada, operation="pay a basket", steps={"basket": {"amount": 5}}, in_doubt=["charge"], keyed=True
    )
    hour = timedelta(hours=1)
    since = {column: F(column) - hour for column in ("attention_at", "updated_at", "created_at")}
    IdempotencyKey.objects.filter(key="basket").update(**since)
    for key, operation in (("tea", "POST orders/"), ("rename", "POST pay/"), ("rename", "pay a basket")):
        create_key(key, scope=ada, operation=operation)


def told(text: str) -> str:
    """Without what differs from run to run: numbers of rows, times, hashes and workers."""
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "UUID", text)
    return re.sub(
        r"\b[0-9a-f]{16}\b|(?<=auth\.User:)\d+|(?<=id )\d+|(?m:^\d+(?= [0-9a-f]{16}))|\S+:\d+(?=, in doubt)", "…", text
    )


@pytest.fixture
def _shop(serve: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoints of the pages, with their keys."""
    pay = idempotent(operation="pay a basket", lease=120, reconcile=not_yet)(creates())
    serve(path("pay-a-basket/", pay), path("orders/", idempotent(creates())))
    monkeypatch.chdir(tmp_path)
    keys()


def compare(shown: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Word for word, with the errors that give the exit status."""
    pk = IdempotencyKey.objects.get(key="basket").pk
    for command, text in shown.items():
        error = ""
        try:
            call_command(*shlex.split(command.replace("--id 2 ", f"--id {pk} ")))
        except CommandError as raised:
            error = f"CommandError: {raised}\n"
        assert told(capsys.readouterr().out + error) == told(text), command


@pytest.mark.django_db
@pytest.mark.usefixtures("_shop")
def test_the_page_shows_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the page, and other pages show the same."""
    shown = {command: text for command, text in SHOWN.items() if not command.startswith((SERVER, CHECK))}
    assert len(shown) == 6
    elsewhere = samples("docs/privacy.md")
    assert elsewhere == {command: shown[command] for command in elsewhere}
    compare(shown, capsys)


@pytest.mark.django_db
@pytest.mark.usefixtures("_shop")
@pytest.mark.parametrize(("page", "number"), [("docs/runbook.md", 4), ("docs/incidents.md", 1)])
def test_a_runbook_shows_what_its_commands_print(page: str, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What a person sees who follows its steps."""
    shown = samples(page)
    assert len(shown) == number
    compare(shown, capsys)


class Stopping(io.StringIO):
    """The output of a server, which gets the signal of a supervisor as soon as it has said anything."""

    def write(self, text: str) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return super().write(text)


@pytest.mark.django_db
@pytest.mark.parametrize("page", ["docs/commands.md", "docs/monitoring.md"])
def test_a_page_shows_what_the_server_of_the_metrics_prints(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host that the page names, and on another port than the default, which may be in use on this machine."""
    pytest.importorskip("prometheus_client")
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    ((command, text),) = [(command, text) for command, text in samples(page).items() if command.startswith(SERVER)]
    default = load_command_class("django_idempotency", SERVER).create_parser("manage.py", SERVER).get_default("port")
    port, out = free_port(), Stopping()
    call_command(*shlex.split(command), "--port", str(port), stdout=out)
    assert out.getvalue() == text.replace(f":{default}/", f":{port}/")
