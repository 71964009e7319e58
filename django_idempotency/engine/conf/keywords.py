"""The options as keyword arguments, for type checkers: a wrong name or type is seen before the code runs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Literal, TypedDict


class UnleasedKeywords(TypedDict, total=False):
    """What means something without a request and without a lease."""

    ttl: timedelta | float
    wait: timedelta | float
    operation: str | None
    using: str | None


class OnceKeywords(UnleasedKeywords, total=False):
    """What means something without a request: for `run_once`, `arun_once` and `once`."""

    lease: timedelta | float | None
    on_abandoned: Literal["retry", "hold"]
    reconcile: Callable[..., Any] | None


class Keywords(OnceKeywords, total=False):
    """The fields of `Idempotency`."""

    required: bool
    methods: Collection[str]
    in_progress_status: Literal[202, 409, 429]
    mismatch_status: Literal[409, 422]
    scope: Callable[[Any], str] | None
    anonymous: Literal["shared", "refuse"]
    key: Callable[[Any], str | None] | None
    fingerprint: Callable[[Any], bytes] | tuple[str, ...] | Literal["request"] | None
    record: Callable[[Any], bool]
    may_replay: Callable[..., bool] | None
    store_body: bool
    max_body_bytes: int
    observe: bool
