"""The client of the payment gateway."""

from __future__ import annotations

import os
from typing import Any

import httpx
from django.conf import settings


class GatewayError(Exception):
    """A timeout, a lost connection or an error of the gateway: the charge may or may not have been made."""


def charge(amount: int, reference: str, *, idempotency_key: str, url: str = settings.GATEWAY_URL) -> dict[str, Any]:
    """Charge once for each key. A refusal is a final result, so it is returned, not raised: {"refused": reason}."""
    try:
        response = httpx.post(
            f"{url}/charges",
            json={"amount": amount, "reference": reference},
            # The demo reads here which process to kill.
            headers={"Idempotency-Key": idempotency_key, "User-Agent": f"shop-{os.getpid()}"},
            timeout=settings.GATEWAY_TIMEOUT,
        )
    except httpx.TransportError as error:
        raise GatewayError(f"The gateway did not answer: {type(error).__name__}.") from error
    if response.status_code == 402:
        return {"refused": response.json()["error"]}
    if response.status_code not in (200, 201):
        raise GatewayError(f"The gateway answered {response.status_code}.")
    return {"id": response.json()["id"]}
