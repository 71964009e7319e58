"""httpx-retries: a transport that repeats the request."""

import sys

import httpx
from httpx_retries import Retry, RetryTransport

url, key, fault, timeout = sys.argv[1:]
retry = Retry(total=20, allowed_methods=["POST"], status_forcelist=[409, 502, 503, 504], backoff_factor=0.1)
headers = {"Idempotency-Key": key, "X-Fault": fault}
with httpx.Client(transport=RetryTransport(retry=retry), timeout=float(timeout)) as client:
    answer = client.post(url, json={"item": "a book"}, headers=headers).raise_for_status()
sys.stdout.buffer.write(answer.content)
