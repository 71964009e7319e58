"""A process that is told to stop in the middle of a leased operation releases its key."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from django_idempotency.models import IdempotencyKey
from tests.servers import DEADLINE, server_environment

PROGRAM = """
import django; django.setup()
import signal, sys, time
from django.test import Client
from django.urls import path
from django.http import HttpResponse
from django.conf import settings
from django_idempotency import idempotent

# As the docs advise for scripts: the package installs no handler. By default SIGTERM ends a process at once.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
# As in a terminal: where the tests run in the background, Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def hang():
    print("in the call", flush=True)
    time.sleep(3600)

@idempotent(lease=3600)
def view(request):
    request.idempotency.call("charge", hang)

urlpatterns = [path("pay", view)]
settings.ROOT_URLCONF = __name__
Client().post("/pay", headers={"Idempotency-Key": "k"})
"""


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_releases_the_key(number: int, status: int) -> None:
    """SIGTERM with the handler of the docs, and Ctrl-C: the call is in doubt, and the lease is over."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=server_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "in the call\n"
            process.send_signal(number)
            assert process.wait(DEADLINE) == status
        finally:
            process.kill()
    row = IdempotencyKey.objects.get()
    assert (row.status, row.locked_until, row.attempt) == ("failed", None, 1)
    assert list(row.steps.values_list("name", "finished_at")) == [("charge", None)]
