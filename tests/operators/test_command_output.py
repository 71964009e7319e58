"""`management/output.py`: what a command quotes neither stops the run nor steers a terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.urls import path

from django_idempotency import idempotent
from django_idempotency.models import IdempotencyKey
from tests.expired import make_leased
from tests.leased_urls import HOOKS, leave_in_doubt
from tests.servers import DEADLINE, server_environment
from tests.views import answers

pytest.importorskip("rest_framework")  # the project of the processes has it


urlpatterns = [path("straße/", idempotent(answers())), path("orders/", idempotent(answers()))]


def printed(encoding: str, *arguments: str) -> tuple[int, str, str]:
    """Exit status and output of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        env=server_environment(PYTHONIOENCODING=encoding, PYTHONUTF8="0"),
        capture_output=True,
        encoding=encoding,
        timeout=DEADLINE,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.django_db(transaction=True)
def test_recovery_reaches_the_keys_behind() -> None:
    """The operation of the first key has a character that the encoding lacks."""
    for number, operation in enumerate(("POST оплата/ä", "POST pay/")):
        make_leased(str(number), "failed", doubt=True)
        IdempotencyKey.objects.filter(key=str(number)).update(operation=operation)
    status, out, err = printed("ascii", "recover_idempotency_keys")
    first, second, last = out.splitlines()
    assert first.startswith("1 key of POST pay/: left, ")
    assert second.startswith(r"1 key of POST \u043e\u043f\u043b\u0430\u0442\u0430/\xe4: left, ")
    assert last == "Completed 0 idempotency keys. Need attention: 2."
    assert (status, err.splitlines()[-1].startswith("CommandError: ")) == (3, True)


@pytest.mark.django_db
@pytest.mark.urls("tests.leased_urls")
def test_a_terminal_obeys_nothing_that_an_error_says(post: Callable[..., Any]) -> None:
    """Whichever its class is called. It is kept in the log in the same way, on one line."""
    evil_class: type[OSError] = type("declined\x1b]0;owned\x07\r\nall keys are recovered\u202e", (OSError,), {})

    def evil(*args: object) -> None:
        raise evil_class

    leave_in_doubt(post, "/pay/reconcile")
    HOOKS["reconcile"] = evil
    out = io.StringIO()
    with pytest.raises(CommandError):
        call_command("recover_idempotency_keys", "--older-than=0", stdout=out)
    said = rf"{__name__}.declined\x1b]0;owned\x07\r\nall keys are recovered\u202e: line"
    assert f"reconcile raised {said}" in out.getvalue().splitlines()[0]
    assert (IdempotencyKey.objects.get().last_error or "").startswith(said)


@pytest.mark.django_db
def test_what_a_row_holds_makes_no_second_line() -> None:
    """A client may have chosen the name of a resource: it must not look like the line of another key."""
    forged = "7\n59 0123456789abcdef POST pay/, caller 'user:1': failed"
    make_leased("k", "failed", doubt=True)
    key = IdempotencyKey.objects.get()
    IdempotencyKey.objects.update(resource_type="order", resource_id=forged, operation="POST pay/\n59")
    key.steps.filter(finished_at=None).update(name="charge\n59")
    listed, left = io.StringIO(), io.StringIO()
    call_command("resolve_idempotency_keys", "--state=in-doubt", "--release", "--calls-did-not-happen", stdout=listed)
    assert [line.split()[0] for line in listed.getvalue().splitlines()] == [str(key.pk), "Would"]
    with pytest.raises(CommandError):
        call_command("recover_idempotency_keys", stdout=left)
    assert [line.split()[0] for line in left.getvalue().splitlines()] == ["1", "Completed"]
