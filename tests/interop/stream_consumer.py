"""A consumer of a Redis stream: takes over what another consumer has not acknowledged, then reads what is new."""

from __future__ import annotations

import sys

import django
import redis

django.setup()

from tests.interop.deliveries import handle  # noqa: E402

STREAM, GROUP = "orders", "shop"


def main(socket: str, name: str) -> None:
    with redis.Redis(unix_socket_path=socket, decode_responses=True) as stream:
        _, claimed, _ = stream.xautoclaim(STREAM, GROUP, name, min_idle_time=0)
        read = stream.xreadgroup(GROUP, name, {STREAM: ">"})
        for number, fields in [*claimed, *(message for _, messages in read or () for message in messages)]:
            handle(fields["message"])
            stream.xack(STREAM, GROUP, number)


if __name__ == "__main__":
    main(*sys.argv[1:])
