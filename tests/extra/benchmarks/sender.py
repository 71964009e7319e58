"""Requests to a WSGI application, in any environment: `-m tests.extra.benchmarks.sender MODULE:APPLICATION`.

A line of standard input is [path, key, number]; without a key, each request has a new one. The answer is
[seconds, seconds of CPU] as JSON.
"""

from __future__ import annotations

import io
import json
import sys
import time
from importlib import import_module
from typing import Any
from uuid import uuid4

BODY = b'{"item": "tea", "quantity": 3}'


def send(application: Any, path: str, key: str) -> None:
    statuses: list[str] = []
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": f"/{path}",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(BODY)),
        "HTTP_IDEMPOTENCY_KEY": key,
        "wsgi.input": io.BytesIO(BODY),
        "wsgi.url_scheme": "http",
    }
    response = application(environ, lambda status, headers, error=None: statuses.append(status))
    body = b"".join(response)
    getattr(response, "close", bool)()
    assert (statuses, body) == (["201 Created"], b'{"published": true}'), (statuses, body)


def main(module: str, name: str) -> None:
    application = getattr(import_module(module), name.removesuffix("()"))
    application = application() if name.endswith("()") else application
    for line in sys.stdin:
        path, key, number = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(number):
            send(application, path, key or str(uuid4()))
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1].split(":"))
