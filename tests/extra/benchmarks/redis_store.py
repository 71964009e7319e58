"""A store of keys in Redis, written for the comparison only: the order is in PostgreSQL, the key in Redis."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import redis
from django.db import transaction

CLAIM = b"claim:"
SET_IF_MINE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
DELETE_IF_MINE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class Busy(Exception):
    """Another worker has claimed this key, and its claim has not expired."""


class NotStored(Exception):
    """The order is committed without a result: the claim has expired, or no replica confirmed it within a second."""


class RedisStore:
    """One command claims and replays, one stores the result. A token keeps a late worker from storing.

    lease, ttl: milliseconds that a claim and a result are kept. replicas: how many must have the result before it is
    answered.
    """

    def __init__(self, client: redis.Redis, *, lease: int = 60_000, ttl: int = 86_400_000, replicas: int = 0) -> None:
        self.client = client
        self.lease, self.ttl, self.replicas = lease, ttl, replicas

    def run_once(self, work: Callable[[], Any], *, key: str) -> Any:
        claim = CLAIM + uuid4().hex.encode()
        stored = self.client.set(key, claim, nx=True, get=True, px=self.lease)
        if stored is not None:
            if stored.startswith(CLAIM):
                raise Busy(key)
            return json.loads(stored)
        try:
            with transaction.atomic():
                result = work()
        except Exception:
            self.client.eval(DELETE_IF_MINE, 1, key, claim)
            raise
        stored = self.client.eval(SET_IF_MINE, 1, key, claim, json.dumps(result), self.ttl)
        if not stored or (self.replicas and self.client.wait(self.replicas, 1000) < self.replicas):
            raise NotStored(key)
        return result
