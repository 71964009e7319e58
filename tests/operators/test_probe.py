"""The probe of deployed endpoints, against real servers: right ones, and ones that are wrong on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from django_idempotency.probe import MALFORMED, main, new_key
from tests.backends import free_port
from tests.servers import gunicorn
from tests.shopapp.models import Order

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 20


class Broken(BaseHTTPRequestHandler):
    """It runs for each request. With `remembers`, it replays, but looks before it has run, and compares nothing."""

    server: Any
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers.get("Idempotency-Key", "")
        with self.server.lock:
            self.server.keys.append(key)
            at_once = [*dict.fromkeys(self.server.keys)].index(key) == 1  # the second key
            body = self.server.results.get(key) if self.server.remembers else None
        if body is None:
            if self.server.remembers and at_once:
                self.server.all_looked.wait(30)  # until they all have seen that there is no result yet
            with self.server.lock:
                self.server.ran += 1
                body = self.server.results[key] = b'{"id": %d}' % self.server.ran
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def broken(*, remembers: bool, status: int = 201) -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        server.daemon_threads = True
        server.lock, server.ran, server.keys, server.results = threading.Lock(), 0, [], {}
        server.remembers, server.status = remembers, status
        server.all_looked = threading.Barrier(AT_ONCE)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def url_of(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_port}/pay?shop=1"


def verdicts(printed: str) -> list[tuple[str, str]]:
    return [(line[:28].strip(), line.split()[-1]) for line in printed.splitlines()]


@pytest.mark.parametrize(
    "written",
    [
        ["http://localhost/größe"],
        ["http://localhost/", "--header", "Authorization: Bearer …"],
        ["http://localhost/", "--header", "X-Ünit: 1"],
        ["http://localhost/", "--header", "X-One: 1\r\nX-Two: 2"],
        ["http://localhost/", "--content-type", "application/json; charset=ü"],
        ["http://localhost/", "--key-header", "Schlüssel"],
        ["http://localhost/", "--method", "POST\n"],
    ],
)
def test_what_http_cannot_carry_is_refused(written: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is sent. The exit status isn't that of an endpoint which is not idempotent."""
    with pytest.raises(SystemExit) as ended:
        main([*written, "--run"])
    assert ended.value.code == 2
    assert "printable ASCII characters" in capsys.readouterr().err


def test_without_run_it_sends_nothing() -> None:
    """It says what it would send, and what that creates. No project has to be configured, and no secret is shown."""
    with broken(remembers=False) as server:
        command = [
            sys.executable,
            "-m",
            "django_idempotency.probe",
            url_of(server),
            "--header",
            "Authorization: s3cret",
        ]
        environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        done = subprocess.run(command, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
        assert server.keys == []
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        f"This would send to POST {url_of(server)}, with the headers Content-Type, Idempotency-Key, Auth" in done.stdout
    )
    assert "up to 26 times" in done.stdout
    assert "s3cret" not in done.stdout


@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
def test_a_protected_endpoint(capsys: pytest.CaptureFixture[str]) -> None:
    """On gunicorn, with several workers: each row is as the draft asks, and two orders are made."""
    with gunicorn("--workers", "2", "--threads", str(AT_ONCE)) as url:
        status = main([f"{url}/plain", "--data", '{"amount": 1}', "--run"])
    printed = capsys.readouterr().out
    assert verdicts(printed) == [
        ("first request", "ok"),
        ("the same again", "ok"),
        ("20 at once", "ok"),
        ("the first key, another body", "ok"),
        ("no key", "ok"),
        (f"malformed key {MALFORMED}", "ok"),
    ]
    assert (status, Order.objects.count()) == (0, 2)


def test_an_unprotected_endpoint(capsys: pytest.CaptureFixture[str]) -> None:
    """The retry shows it, and nothing more is sent: two orders, not twenty-six."""
    with broken(remembers=False) as server:
        assert main([url_of(server), "--run"]) == 1
        assert server.ran == 2
    assert verdicts(capsys.readouterr().out) == [("first request", "ok"), ("the same again", "NO")]


def test_an_endpoint_that_looks_first(capsys: pytest.CaptureFixture[str]) -> None:
    """It replays one after the other, as a cache beside the view does. At once, each request runs."""
    with broken(remembers=True) as server:
        assert main([url_of(server), "--run"]) == 1
        assert server.ran == 1 + AT_ONCE + 2
    assert [verdict for _, verdict in verdicts(capsys.readouterr().out)] == ["ok", "ok", "NO", "NO", "NO", "NO"]


def test_a_request_that_is_not_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is a redirect followed. Nothing is known, which is no success."""
    with broken(remembers=False, status=307) as server:
        assert main([url_of(server), "--run", "--optional"]) == 2
        assert len(server.keys) == 1
    assert "Look at --header and --data" in capsys.readouterr().out


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"http://127.0.0.1:{free_port()}/", "--run"]) == 2
    assert "ConnectionRefusedError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ftp://shop.example/"], "is not an address"),
        (["https://user:s3cret@shop.example/"], "pass logins by --header"),
        (["http://localhost/", "--header", "Authorization"], "write 'Name: value'"),
        (["http://localhost/", "--at-once", "51"], "'51' is not a number from 2 to 50"),
        (["http://localhost/", "--data", "@/nowhere"], "'@/nowhere' cannot be read: No such file"),
        (["http://localhost/", "--data", "<pay/>"], "pass another body by --other-data"),
        (["http://localhost/", "--data", "[1]"], "pass another body by --other-data"),
        (["http://localhost/", "--data", "1", "--other-data", "1"], "pass another body by --other-data"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err


def test_a_form_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other body has one more field."""
    (tmp_path / "form").write_text("amount=1")
    form = ["--content-type", "application/x-www-form-urlencoded", "--data", f"@{tmp_path / 'form'}"]
    assert main(["https://localhost:1/", *form, "--optional"]) == 0
    printed = capsys.readouterr().out
    assert "amount=1&idempotency_probe=another" in printed
    assert "up to 25 times" in printed


def test_keys_are_of_version_7() -> None:
    """Of late_keys="refuse", which needs their time."""
    from uuid import UUID

    first, second = UUID(new_key()), UUID(new_key())
    assert (first.version, first.variant, first == second) == (7, "specified in RFC 4122", False)
