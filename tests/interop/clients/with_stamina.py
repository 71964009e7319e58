"""stamina, which is tenacity with defaults, around httpx."""

import sys

import httpx
import stamina

url, key, fault, timeout = sys.argv[1:]


@stamina.retry(on=httpx.HTTPError, attempts=20, timeout=60, wait_initial=0.1, wait_max=1)
def place_order() -> httpx.Response:
    headers = {"Idempotency-Key": key, "X-Fault": fault}
    return httpx.post(url, json={"item": "a book"}, headers=headers, timeout=float(timeout)).raise_for_status()


sys.stdout.buffer.write(place_order().content)
