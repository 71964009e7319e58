"""What the documented clients do with each answer: a server with a script, on a real socket."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import RequestFactory

from django_idempotency import idempotent
from tests.acceptance.documented_clients import DOCS, NODE, Place, node, place_order, python_client, python_outbox
from tests.acceptance.problems import answers_by_code
from tests.views import creates

__all__ = ["place_order"]
Answer = tuple[int, dict[str, str], Any]
DONE: Answer = (201, {}, {"id": 7})
TOLD_FOR = {"retry": {"id": 7}, "log-in": "NotConfirmed", "look-up": "Processed", "final": "refused"}
"""What the clients make of each meaning. After "retry", the scripted server has a final answer."""


CODE = re.compile(r"(?m)^### `([a-z-]+)`\n\n([\d, ]+): ")
"""A heading for each code, because `type` may lead to it, and the statuses with which it comes."""


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
        pytest.param((409, {}, {"code": {"busy": True}}), "refused 409", id="a code that is no text"),
        pytest.param((409, {}, {"code": "busy"}), "refused 409", id="of the business, with our code of another status"),
        pytest.param((402, {}, {"refused": "declined"}), "refused 402", id="declined"),
        pytest.param((204, {}, ""), {}, id="no content"),
        pytest.param((202, {}, {"status": "in_progress"}), {"status": "in_progress"}, id="202 without a page"),
        pytest.param((401, {}, ""), "NotConfirmed", id="the token is over"),
        pytest.param((403, {}, "no"), "NotConfirmed", id="forbidden"),
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
        pytest.param((409, {"Retry-After": "1"}, {"code": "in-progress"}), id="busy"),
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


def test_each_code_has_one_meaning_everywhere() -> None:
    """The server, both clients and the page on problems agree, and the page for clients explains each meaning."""
    server = answers_by_code()
    assert python_client()["CODES"] == server
    _, *parts = re.split(r"(?m)^## `([a-z-]+)`: ", (DOCS / "problems.md").read_text())
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    rows = [(meaning, *row) for meaning in told for row in re.findall(CODE, told[meaning])]
    assert {f"{status} {code}": told for told, code, statuses in rows for status in statuses.split(", ")} == server
    explained = re.findall(r"(?m)^\* \*\*([a-z-]+)\*\*:", (DOCS / "clients.md").read_text())
    assert explained == list(told) == ["retry", "log-in", "look-up", "final"]
    if NODE is None:
        pytest.skip("Node is not on this machine, so the table of client.js was not read")
    assert node("Promise.resolve(CODES)") == server


@pytest.mark.django_db
def test_the_page_shows_a_response_of_the_server() -> None:
    """Word for word."""
    view, headers = idempotent(creates()), {"Idempotency-Key": "k"}
    for reference in ("tea", "coffee"):
        request = RequestFactory().post("/orders/", {"reference": reference}, "application/json", headers=headers)
        response = view(request)
    (shown,) = re.findall(r"```http\n(.*?)```", (DOCS / "problems.md").read_text(), re.DOTALL)
    status = f"HTTP/1.1 {response.status_code} Unprocessable Entity"
    assert shown == f"{status}\n{response.serialize().decode()}\n".replace("\r", "")


@pytest.mark.parametrize(("answer", "meaning"), answers_by_code().items())
def test_the_clients_do_what_the_code_means(server: Scripted, place_order: Place, answer: str, meaning: str) -> None:
    """They send again, or raise what says why they do not."""
    status, code = answer.split()
    server.answers = [(int(status), {}, {"code": code}), DONE]
    told = place_order(server.url, "k", {"item": "a book"})
    assert told == (f"refused {status}" if meaning == "final" else TOLD_FOR[meaning])
    assert len(server.times) == (2 if meaning == "retry" else 1)


BEFORE_THE_CLAIM = [answer for answer, meaning in answers_by_code().items() if meaning == "final"]
LOST: Answer = (500, {}, "")
"""The worker may have died after its COMMIT: the order may exist."""
STORAGE = "{kept: {}, getItem(name) { return this.kept[name] ?? null; }, setItem(n, text) { this.kept[n] = text; }}"


@pytest.mark.parametrize("answer", BEFORE_THE_CLAIM)
def test_a_refusal_before_the_claim_says_nothing_of_an_earlier_attempt(
    server: Scripted, place_order: Place, answer: str
) -> None:
    """After an attempt without a final response, such a refusal leaves the outcome unknown."""
    status, code = answer.split()
    server.answers = [LOST, (int(status), {}, {"code": code})]
    assert place_order(server.url, "k", {"item": "a book"}) == "Processed"
    assert len(server.times) == 2


def test_the_outbox_of_python_remembers_an_attempt(server: Scripted, tmp_path: Path) -> None:
    """A refusal before the claim is no final answer to an order that another process has sent."""
    ends = []
    for answer in (LOST, (400, {}, {"code": "invalid-key"})):
        server.answers = [answer]
        with python_outbox(tmp_path / "outbox") as outbox, httpx.Client(base_url=server.url) as client:
            if not ends:
                outbox.put({"item": "a book"})
            ends.append([type(end).__name__ for _, end in outbox.deliver(client, give_up_after=0)])
    assert ends == [[], ["Processed"]]


def test_the_outbox_of_javascript_remembers_an_attempt(server: Scripted) -> None:
    """A refusal before the claim is no final answer to an order that was sent before the page was loaded again."""
    if NODE is None:
        pytest.skip("Node is not on this machine")
    server.answers = [LOST, (400, {}, {"code": "invalid-key"})]
    box = f"const box = new Outbox('{server.url}', 'outbox', {STORAGE}); const name = (error) => error.constructor.name"
    first, second = "await box.submit('f', {}, 0).catch(name)", "await box.resume(0)[0].catch(name)"
    assert node(f"(async () => {{ {box}; return [{first}, {second}]; }})()") == ["NotConfirmed", "Processed"]


NOT_STORED: Answer = (409, {"Location": "/orders/7/"}, {"code": "response-not-stored"})
NOT_SHOWN: Answer = (403, {}, {"code": "replay-refused"})


@pytest.mark.parametrize(("answer", "place"), [(NOT_STORED, "/orders/7/"), (NOT_SHOWN, None)])
def test_a_processed_order_leaves_the_outbox_of_python(
    server: Scripted, tmp_path: Path, answer: Answer, place: str | None
) -> None:
    """It is no refusal: another order in its place would be a second one. The client learns where the first is."""
    server.answers = [answer]
    with python_outbox(tmp_path / "outbox") as outbox, httpx.Client(base_url=server.url) as client:
        outbox.put({"item": "a book"})
        ((order, end),) = outbox.deliver(client)
        assert list(outbox.deliver(client)) == []
    assert (order, type(end).__name__, end.args) == ({"item": "a book"}, "Processed", (place,))


@pytest.mark.parametrize(("answer", "place"), [(NOT_STORED, "/orders/7/"), (NOT_SHOWN, "")])
def test_a_processed_order_leaves_the_outbox_of_javascript(server: Scripted, answer: Answer, place: str) -> None:
    """Without a second request, which would run the order again after the `ttl`."""
    if NODE is None:
        pytest.skip("Node is not on this machine")
    server.answers = [answer]
    submit = f"const box = new Outbox('{server.url}', 'outbox', {STORAGE}); const told = box.submit('f', {{}})"
    result = "const end = await told.catch((error) => error); return [end.constructor.name, end.message, box.entries()]"
    told = node(f"(async () => {{ {submit}; {result}; }})()")
    assert told == ["Processed", place and server.url + place, {}]
    assert len(server.times) == 1


def test_a_status_page_is_followed_to_the_end(server: Scripted, place_order: Place) -> None:
    """After 202, the client asks the page, and not for another order."""
    server.answers = [(202, {"Location": "/page", "Retry-After": "1"}, {"status": "in_progress"})]
    server.answers += [(200, {}, {"status": status}) for status in ("in_progress", "completed")]
    assert place_order(server.url, "k", {"item": "a book"}) == {"status": "completed"}
    assert (len(server.times), server.keys) == (3, {'"k"', None})


@pytest.mark.parametrize(
    ("page", "told"),
    [
        pytest.param((404, {}, ""), {"status": "in_progress", "id": 7}, id="gone"),
        pytest.param((200, {}, {"status": "failed"}), "refused 200", id="failed"),
        pytest.param((401, {}, ""), "NotConfirmed", id="after a login"),
    ],
)
def test_only_a_failure_refuses_an_accepted_order(
    server: Scripted, place_order: Place, page: Answer, told: Any
) -> None:
    """A view's own 202 is final even if its page can't be read."""
    server.answers = [(202, {"Location": "/page"}, {"status": "in_progress", "id": 7}), page]
    assert place_order(server.url, "k", {"item": "a book"}) == told
    assert len(server.times) == 2
