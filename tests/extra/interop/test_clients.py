"""Clients that repeat a request by themselves: one order, and the bytes of the answer that was lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.extra.interop.faults import answers, arrivals, digest
from tests.servers import DEADLINE, eventually
from tests.shopapp.models import Order

pytestmark = [
    pytest.mark.skipif("INTEROP" not in os.environ, reason="NOT RUN: other people's programs, tox run -e interop"),
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
]
PROGRAMS = Path(__file__).parent / "clients"
INSTALLATION = 120
"""Seconds for npm, or for Go's compiler."""
AXIOS = ("axios@1.21.1", "axios-retry@4.5.0")


def python(library: str) -> list[str]:
    if find_spec(library) is None:
        pytest.skip(f"NOT RUN: no {library} here")
    return [sys.executable, str(PROGRAMS / f"with_{library}.py")]


def curl() -> list[str]:
    if (program := shutil.which("curl")) is None:
        pytest.skip("NOT RUN: no curl here")
    return ["sh", "-c", CURL.format(program), "curl"]


CURL = """{} --silent --fail --retry 20 --retry-all-errors --retry-delay 1 --max-time $4 \\
  --header "Idempotency-Key: $2" --header "X-Fault: $3" --json '{{"item": "a book"}}' $1"""


def path_of(program: str) -> str:
    if (path := shutil.which(program)) is None:
        pytest.skip(f"NOT RUN: no {program} here")
    return path


@pytest.fixture(scope="module")
def axios_retry(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    node, npm = path_of("node"), path_of("npm")
    folder = tmp_path_factory.mktemp("axios")
    install = [npm, "install", "--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund", *AXIOS]
    try:
        subprocess.run(install, capture_output=True, check=True, timeout=INSTALLATION)
    except subprocess.SubprocessError as error:
        # npm's own words name folders of this machine, and the reason is for the page of proof.
        pytest.skip(f"NOT RUN: npm has no axios-retry for us: {type(error).__name__}")
    shutil.copy(PROGRAMS / "with_axios_retry.cjs", folder)
    return [node, str(folder / "with_axios_retry.cjs")]


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    compiler, folder = path_of("go"), tmp_path_factory.mktemp("go")
    program = folder / "post"
    subprocess.run(
        [compiler, "build", "-o", program, PROGRAMS / "with_go.go"],
        env={**os.environ, "GOCACHE": str(folder / "cache"), "GO111MODULE": "off", "CGO_ENABLED": "0"},
        check=True,
        timeout=INSTALLATION,
    )
    return [str(program)]


CLIENTS: dict[str, Callable[[], list[str]] | str] = {
    "httpx-retries": lambda: python("httpx_retries"),
    "urllib3": lambda: python("urllib3"),
    "curl": curl,
    "axios-retry": "axios_retry",
    "go": "go",
}
"""A command to which URL, key, fault and timeout are appended, or the fixture that makes it."""
SET_UP = [name for name in CLIENTS if name != "go"]
"""These repeat also what a proxy answers. Go repeats only what had no answer."""


@pytest.fixture
def command(client: str, request: pytest.FixtureRequest) -> list[str]:
    found = CLIENTS[client]
    return request.getfixturevalue(found) if isinstance(found, str) else found()


def run(command: list[str], url: str, key: str, fault: str, timeout: int = DEADLINE) -> bytes:
    """Give what the client has printed: the body of the answer that it took for final."""
    done = subprocess.run([*command, url, key, fault, str(timeout)], capture_output=True, timeout=3 * DEADLINE)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.timeout(INSTALLATION + 60)
@pytest.mark.parametrize("client", CLIENTS)
class TestALostAnswer:
    @pytest.mark.parametrize("fault", ["lost", "503"])
    def test_the_repeat_gets_it(self, server: str, command: list[str], key: str, client: str, fault: str) -> None:
        """The worker dies after the COMMIT, or a proxy gives up. The client repeats the request: one order, and the
        same bytes."""
        if fault == "503" and client not in SET_UP:
            pytest.skip(f"{client} repeats no 503")
        told = run(command, f"{server}/protected", key, fault)
        assert answers(key) == [(201, digest(told))] * 2
        assert Order.objects.filter(reference=key).count() == 1

    def test_without_protection_it_is_a_second_order(self, server: str, command: list[str], key: str) -> None:
        """So the client does repeat the request."""
        told = run(command, f"{server}/unprotected", key, "lost")
        (first, lost), (second, final) = answers(key)
        assert (first, second, final) == (201, 201, digest(told))
        assert lost != final
        assert Order.objects.filter(reference=key).count() == 2


@pytest.mark.timeout(INSTALLATION + 60)
@pytest.mark.parametrize("client", SET_UP)
def test_a_timeout_while_the_first_is_running(server: str, command: list[str], key: str, client: str) -> None:
    """The repeat meets 409, and the client repeats once more: one order, and the bytes of the first."""
    told = run(command, f"{server}/protected", key, "running", timeout=1)
    eventually("all requests to be answered", lambda: len(answers(key)) == arrivals(key))
    (conflict, _), *_ = told_by_server = answers(key)
    assert conflict == 409
    assert {found for status, found in told_by_server if status == 201} == {digest(told)}
    assert {status for status, _ in told_by_server} == {409, 201}
    assert Order.objects.filter(reference=key).count() == 1
