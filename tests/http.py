"""Requests under a key, and their answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.test import Client, RequestFactory

from django_idempotency import idempotent
from tests.views import creates

REPLAYED = "Idempotency-Replayed"


def replayed(response: Any) -> str | None:
    """`true` for a replay, `false` for a first answer, None where no key was honoured."""
    return response.headers.get(REPLAYED)


def same(first: Any, second: Any) -> bool:
    """Status, bytes, and every header but the one that tells a replay."""
    headers = [{k: v for k, v in r.headers.items() if k != REPLAYED} for r in (first, second)]
    return (first.status_code, first.content, headers[0]) == (second.status_code, second.content, headers[1])


def post_empty(key: str, path: str = "/pay") -> Any:
    """Post an empty JSON object by a client of its own, as a thread needs one; a server error is an answer."""
    client = Client(raise_request_exception=False)
    return client.post(path, {}, content_type="application/json", headers={"Idempotency-Key": key})


def posting_to_a_view(**options: Any) -> Callable[..., Any]:
    """Protect a view that makes an order with these options; gives a function that posts to it directly."""
    view = idempotent(**{"scope": lambda request: "s", **options})(creates(200))

    def send(data: Any = b"{}", content_type: str = "application/json", *, consumed: bool = False) -> Any:
        request = RequestFactory().post("/", data, content_type=content_type, headers={"Idempotency-Key": "k"})
        if consumed:
            request.read()
        return view(request)

    return send


def problem(response: Any) -> dict[str, Any]:
    assert response.headers["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = json.loads(response.content)
    assert set(body) == {"type", "code", "meaning", "title", "status", "detail", "instance"}
    assert body["status"] == response.status_code
    return body
