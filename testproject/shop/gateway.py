"""The client of the payment gateway."""

from __future__ import annotations

import os
from typing import Any

import httpx
from django.conf import settings


class GatewayError(Exception):
    """Nobody knows whether the charge was made: a timeout, a lost connection, an error of the gateway's own."""


def charge(amount: int, reference: str, *, idempotency_key: str, url: str = settings.GATEWAY_URL) -> dict[str, Any]:
    """Charge once for each key. A refusal is a clear answer, so it is returned, not raised: {"refused": why}."""
    try:
        answer = httpx.post(
            f"{url}/charges",
            json={"amount": amount, "reference": reference},
            # The demo wants to know whom to kill.
            headers={"Idempotency-Key": idempotency_key, "User-Agent": f"shop-{os.getpid()}"},
            timeout=settings.GATEWAY_TIMEOUT,
        )
    except httpx.TransportError as error:
        raise GatewayError(f"The gateway did not answer: {type(error).__name__}.") from error
    if answer.status_code == 402:
        return {"refused": answer.json()["error"]}
    if answer.status_code not in (200, 201):
        raise GatewayError(f"The gateway answered {answer.status_code}.")
    return {"id": answer.json()["id"]}
