"""What the documented clients do with each answer: a server with a script, on a real socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.documented_clients import Place, place_order, python_outbox

__all__ = ["place_order"]
Answer = tuple[int, dict[str, str], Any]
DONE: Answer = (201, {}, {"id": 7})
OURS = {"code": "in-progress"}


class Scripted:
    """Gives these answers one after the other. The last one is given for ever."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.times: list[float] = []
        self.keys: set[str | None] = set()
        self.url = ""

    def next(self, key: str | None) -> Answer:
        self.times.append(time.monotonic())
        self.keys.add(key)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def server() -> Iterator[Scripted]:
    script = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, body = script.next(self.headers["Idempotency-Key"])
            content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        script.url = f"http://127.0.0.1:{listener.server_port}"
        yield script
        listener.shutdown()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        pytest.param((409, {}, {"error": "sold out"}), "refused 409", id="of the business"),
        pytest.param((409, {"Retry-After": "1"}, {"code": "sold-out"}), "refused 409", id="of the business, inviting"),
        pytest.param((409, {}, ["sold out"]), "refused 409", id="a list"),
        pytest.param((409, {}, {"code": "already-used"}), "refused 409", id="mismatch as 409"),
        pytest.param((422, {}, {"code": "already-used"}), "refused 422", id="mismatch"),
        pytest.param((409, {}, {"code": "response-not-stored"}), "Processed", id="not stored"),
        pytest.param((409, {}, {"code": "key-too-old"}), "Processed", id="too late"),
        pytest.param((400, {}, {"code": "missing-key"}), "refused 400", id="no key"),
        pytest.param((402, {}, {"refused": "declined"}), "refused 402", id="declined"),
        pytest.param((204, {}, ""), {}, id="no content"),
        pytest.param((202, {}, {"status": "in_progress"}), {"status": "in_progress"}, id="202 without a page"),
        pytest.param((401, {}, ""), "NotConfirmed", id="the token is over"),
        pytest.param((403, {}, "no"), "NotConfirmed", id="forbidden"),
        pytest.param((403, {}, {"code": "replay-refused"}), "NotConfirmed", id="replay refused"),
        pytest.param((302, {"Location": "/login"}, ""), "NotConfirmed", id="to the login"),
        pytest.param((503, {"Retry-After": "3600"}, ""), "NotConfirmed", id="the time is over"),
    ],
)
def test_one_request_is_enough(server: Scripted, place_order: Place, answer: Answer, told: Any) -> None:
    """Final, or nothing that a retry changes now."""
    server.answers = [answer]
    assert place_order(server.url, "k", {"item": "a book"}) == told
    assert len(server.times) == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param((409, {"Retry-After": "1"}, OURS), id="busy"),
        pytest.param((409, {"Retry-After": "1"}, {"code": "outcome-unknown"}), id="outcome unknown"),
        pytest.param((429, {"Retry-After": "1"}, ""), id="too many"),
        pytest.param((520, {"Retry-After": "1"}, "<html>"), id="a proxy's own 5xx"),
    ],
)
def test_a_retry_is_the_same_request(server: Scripted, place_order: Place, answer: Answer) -> None:
    """With the same key, and not earlier than the server asks."""
    server.answers = [answer, DONE]
    assert place_order(server.url, "k", {"item": "a book"}) == {"id": 7}
    assert server.keys == {'"k"'}
    first, second = server.times
    assert second - first >= 1


NOT_STORED: Answer = (409, {"Location": "/orders/7/"}, {"code": "response-not-stored"})


def test_a_processed_order_leaves_the_outbox_of_python(server: Scripted, tmp_path: Path) -> None:
    """It is no refusal: another order in its place would be a second one. The client learns where the first is."""
    server.answers = [NOT_STORED]
    with python_outbox(tmp_path / "outbox") as outbox, httpx.Client(base_url=server.url) as client:
        outbox.put({"item": "a book"})
        ((order, end),) = outbox.deliver(client)
        assert list(outbox.deliver(client)) == []
    assert (order, type(end).__name__, end.args) == ({"item": "a book"}, "Processed", ("/orders/7/",))


def test_a_status_page_is_followed_to_the_end(server: Scripted, place_order: Place) -> None:
    """After 202, the client asks the page, and not for another order."""
    server.answers = [(202, {"Location": "/page", "Retry-After": "1"}, {"status": "in_progress"})]
    server.answers += [(200, {}, {"status": status}) for status in ("in_progress", "completed")]
    assert place_order(server.url, "k", {"item": "a book"}) == {"status": "completed"}
    assert (len(server.times), server.keys) == (3, {'"k"', None})
