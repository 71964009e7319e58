"""`manage.py recover_idempotency_keys`: its lines, its exit status and its limits."""

from __future__ import annotations

import io
import os
import signal
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.http import HttpResponse

from django_idempotency.models import IdempotencyKey
from tests.leased_urls import HOOKS, leave_in_doubt
from tests.leases import breaks, row

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]


@pytest.fixture(autouse=True)
def _doubt(post: Any) -> None:
    leave_in_doubt(post, "/pay/reconcile", key="k")


def run(*args: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("recover_idempotency_keys", "--older-than=0", *args, stdout=out, **options)
    return out.getvalue()


def failing(*args: str) -> tuple[str, int]:
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("recover_idempotency_keys", *args, stdout=out)
    return out.getvalue(), caught.value.returncode


def test_nothing_is_left() -> None:
    """Exit status 0, and one line for cron's mail. `--verbosity 2` has a line for each key."""
    HOOKS["reconcile"] = lambda operation: HttpResponse(status=201)
    done, before = "Completed 1 idempotency key. Need attention: 0.\n", row()
    assert run() == done
    before.save()
    line = f"{before.reference} POST pay/reconcile: completed, reconcile has answered 201.\n"
    assert run(verbosity=2) == line + done
    assert run() == "Completed 0 idempotency keys. Need attention: 0.\n"
    assert run(verbosity=0) == ""


def test_reconcile_does_not_know_yet() -> None:
    """Exit status 3 for None; 1 for an exception or a 503, which is no end. Cron's mail names the key. The next run
    asks again."""
    HOOKS["reconcile"] = lambda operation: None
    text, status = failing("--older-than=0")
    left, last = text.splitlines()
    assert (last, status) == ("Completed 0 idempotency keys. Need attention: 1.", 3)
    assert left.startswith(f"{row().reference} POST pay/reconcile: left, reconcile has left the key to the next retry")
    HOOKS["reconcile"] = breaks
    text, status = failing("--older-than=0")
    assert (text.startswith(f"{row().reference} POST pay/reconcile: failed, reconcile raised "), status) == (True, 1)
    HOOKS["reconcile"] = lambda operation: HttpResponse(status=503)
    assert failing("--older-than=0")[1] == 1
    HOOKS["reconcile"] = lambda operation: HttpResponse(status=402)
    assert run().endswith("Completed 1 idempotency key. Need attention: 0.\n")


def test_keys_whose_clients_may_still_retry_are_counted() -> None:
    """Exit status 3, as cleanup's: a gateway that times out for all clients is seen before the first key is old."""
    assert failing() == ("Completed 0 idempotency keys. Need attention: 0, and 1 younger than 900 seconds.\n", 3)
    assert row().attempt == 1


@pytest.mark.parametrize(
    "arguments",
    [["--database=gone"], ["--max-seconds=-1"], ["--older-than=-1"], ["--older-than=1e12"], ["--import=tests.gone"]],
)
def test_what_cannot_work(arguments: list[str]) -> None:
    """Exit status 1, and nothing was asked."""
    assert failing("--older-than=0", *arguments)[1] == 1
    assert row().attempt == 1


def test_an_unknown_operation_is_told() -> None:
    """It may be a typing error. `--verbosity 0` is silent."""
    row().delete()
    text = run("--operation=POST pay/reconcile", "--operation=POST gone")
    assert text.startswith("0 keys of POST gone: left, no imported view and no imported @once function has this")
    assert text.endswith("Completed 0 idempotency keys. Need attention: 0.\n")
    assert len(text.splitlines()) == 2
    assert run("--operation=POST gone", verbosity=0) == ""


def test_a_dry_run_says_what_would_be_asked() -> None:
    """Exit status 3 also then: the key needs attention."""
    assert failing("--older-than=0", "--dry-run") == (
        f"{row().reference} POST pay/reconcile: would ask, tests.leased_urls.reconciled.\nNeed attention: 1.\n",
        3,
    )


def test_a_signal_ends_the_run_between_two_keys(post: Any) -> None:
    """The key at hand is completed."""
    leave_in_doubt(post, "/pay/reconcile", key="k2")

    def stopped(operation: Any) -> HttpResponse:
        os.kill(os.getpid(), signal.SIGTERM)
        return HttpResponse()

    HOOKS["reconcile"] = stopped
    out = io.StringIO()
    with pytest.raises(SystemExit) as caught:
        call_command("recover_idempotency_keys", "--older-than=0", stdout=out)
    assert caught.value.code == 128 + signal.SIGTERM
    assert out.getvalue().endswith("Stopped early: more may be left. Need attention: 1.\n")
    assert sorted(IdempotencyKey.objects.values_list("status", flat=True)) == ["completed", "failed"]
