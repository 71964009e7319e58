"""How far a long command is: shown on a terminal, and left out of cron's mail."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.http import HttpResponse

from django_idempotency.management import base
from tests.admin_pages import make_key
from tests.expired import make_keys
from tests.leased_urls import HOOKS, leave_in_doubt
from tests.step_rows import add_step

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(out: io.StringIO, command: str, *args: str, **options: Any) -> list[str]:
    """The lines as they come on the screen; of the rates only that there are some."""
    call_command(command, *args, stdout=out, **options)
    return re.sub(r"[\d,]+ a second", "R a second", out.getvalue()).replace("\r\x1b[K", "\n").strip().splitlines()


def test_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of how many, or of how many at least: to count ten million keys takes longer than to delete the first."""
    make_keys(5)
    shown = ["2 of 5 keys, R a second", "4 of 5 keys, R a second", "5 of 5 keys, R a second"]
    assert printed(Terminal(), "cleanup_idempotency_keys", "--batch-size=2") == [
        *shown,
        "Deleted 5 expired idempotency keys.",
    ]
    monkeypatch.setattr(base, "MOST", 3)
    make_keys(4)
    first = printed(Terminal(), "cleanup_idempotency_keys", "--batch-size=2")[0]
    assert first == "2 of at least 3 keys, R a second"
    make_keys(1)
    assert printed(io.StringIO(), "cleanup_idempotency_keys") == ["Deleted 1 expired idempotency key."]
    assert printed(Terminal(), "cleanup_idempotency_keys", verbosity=0) == []


def test_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nothing is deleted yet."""
    monkeypatch.setattr("django_idempotency.maintenance.erasure.BATCH_SIZE", 2)
    for number in range(3):
        make_key(f"k-{number}", scope="s")
    shown = [
        "2 of 3 keys, R a second",
        "3 of 3 keys, R a second",
        "Would forget 3 keys of s. Add --apply to do it.",
    ]
    assert printed(Terminal(), "forget_idempotency_keys", "--scope=s") == shown
    assert printed(io.StringIO(), "forget_idempotency_keys", "--scope=s", "--apply") == ["Forgot 3 keys of s."]


def test_resolve() -> None:
    """After the list of the keys."""
    for number in range(2):
        add_step(make_key(f"k-{number}", status="failed", policy="retry"))
    decision = ("--state=in-doubt", "--release", "--apply", "--by=ada", "--reason=T-7")
    assert printed(Terminal(), "resolve_idempotency_keys", *decision)[2:] == [
        "1 of 2 keys, R a second",
        "2 of 2 keys, R a second",
        "Released 2 keys.",
    ]


def test_recover(post: Any) -> None:
    """Below the line of each key, also of one that is done now. An error begins a line of its own."""
    for key in ("a", "b"):
        leave_in_doubt(post, "/pay/reconcile", key=key)
    HOOKS["reconcile"] = lambda operation: HttpResponse(status=201) if operation.key == "a" else None
    out = Terminal()
    with pytest.raises(CommandError):
        call_command("recover_idempotency_keys", "--older-than=0", stdout=out)
    shown = re.sub(r"[\d,]+ a second", "R", out.getvalue())
    assert shown.count("POST pay/reconcile: completed, ") == 1
    assert re.findall(r"\d of \d keys, R", shown) == ["1 of 2 keys, R", "2 of 2 keys, R"]
    assert "\r\x1b[KCompleted 1 idempotency key. Need attention: 1." in shown
