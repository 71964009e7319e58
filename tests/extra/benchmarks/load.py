"""Clients in a process of their own: `python -m tests.extra.benchmarks.load`, what they do is JSON on standard input.

The answer on standard output is [seconds, [seconds that each request took, …]].
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from subprocess import PIPE, Popen
from uuid import uuid4

BODY = json.dumps({"item": "tea", "quantity": 3})
OTHER_BODY = json.dumps({"item": "coffee", "quantity": 1})


@dataclass(frozen=True)
class Load:
    """Each client first sends one request under a key of its own, and then goes on with new keys or with that one.

    status: what all answers must have. other_body: send another one than the first time. key: that of all clients,
    whose first request is already running. interval: seconds between two requests of one client; 0: each follows the
    answer to the one before.
    """

    port: int
    clients: int
    seconds: float
    path: str = "protected"
    new_keys: bool = True
    status: int = 201
    other_body: bool = False
    key: str = ""
    interval: float = 0

    def start(self) -> Popen[str]:
        process = Popen([sys.executable, "-m", "tests.extra.benchmarks.load"], stdin=PIPE, stdout=PIPE, text=True)
        assert process.stdin is not None
        json.dump(asdict(self), process.stdin)
        process.stdin.close()
        return process

    async def send(self, key: str, body: str, status: int) -> None:
        """A connection for each request, as behind a proxy: gunicorn's sync workers close it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            f"POST /{self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        answer = await reader.read(-1)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 %d" % status), answer

    async def client(self, number: int, ready: asyncio.Barrier) -> list[float]:
        key = self.key or str(uuid4())
        body = OTHER_BODY if self.other_body else BODY
        if not self.key:
            await self.send(key, BODY, 201)
        await ready.wait()
        taken = []
        started = time.perf_counter()
        due = started + self.interval * number / self.clients
        while due < started + self.seconds:
            await asyncio.sleep(due - time.perf_counter())
            await self.send(str(uuid4()) if self.new_keys else key, body, self.status)
            now = time.perf_counter()
            taken.append(now - due)  # from when it was due: what waits behind a slow one is slow, too
            due = due + self.interval if self.interval else now
        return taken

    async def run(self) -> tuple[float, list[float]]:
        ready = asyncio.Barrier(self.clients + 1)
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(self.client(number, ready)) for number in range(self.clients)]
            await ready.wait()
            started = time.perf_counter()
        return time.perf_counter() - started, [one for client in clients for one in client.result()]


def result(process: Popen[str]) -> tuple[float, list[float]]:
    """What the clients found; waits for them."""
    assert process.stdout is not None
    answer = process.stdout.read()
    assert process.wait() == 0, "the clients failed"
    seconds, taken = json.loads(answer)
    return seconds, taken


if __name__ == "__main__":
    print(json.dumps(asyncio.run(Load(**json.load(sys.stdin)).run())))
