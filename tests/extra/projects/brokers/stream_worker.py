"""A worker of the stream `orders`."""

from __future__ import annotations

import os

import django

django.setup()

from django.conf import settings  # noqa: E402
from redis import Redis  # noqa: E402
from shop.stream import consume  # noqa: E402

if __name__ == "__main__":
    redis = Redis.from_url(settings.REDIS, decode_responses=True)
    while True:
        consume(redis, f"worker {os.getpid()}")
