"""The client of the payment gateway."""

from __future__ import annotations

from typing import Any

import httpx
from django.conf import settings


class GatewayError(Exception):
    """Nobody knows whether the charge was made: a timeout, a lost connection, an error of the gateway's own."""


def charge(amount: int, reference: str, *, idempotency_key: str) -> dict[str, Any]:
    """Charge once for each key. A refusal is a clear answer, so it is returned, not raised: {"refused": why}."""
    answer = _send(
        "POST",
        "/charges",
        json={"amount": amount, "reference": reference},
        headers={"Idempotency-Key": idempotency_key},
    )
    if answer.status_code == 402:
        return {"refused": answer.json()["error"]}
    if answer.status_code not in (200, 201):
        raise GatewayError(f"The gateway answered {answer.status_code}.")
    return {"id": answer.json()["id"]}


def find(reference: str) -> dict[str, Any] | None:
    """The charge with this reference in the gateway's books, if there is one."""
    answer = _send("GET", "/charges", params={"reference": reference})
    charges = answer.json()["charges"]
    return {"id": charges[0]["id"]} if charges else None


def _send(method: str, path: str, **kwargs: Any) -> httpx.Response:
    try:
        return httpx.request(method, settings.GATEWAY_URL + path, timeout=settings.GATEWAY_TIMEOUT, **kwargs)
    except httpx.TransportError as error:
        raise GatewayError(f"The gateway did not answer: {type(error).__name__}.") from error
