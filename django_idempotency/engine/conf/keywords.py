"""The options as keyword arguments, for type checkers: they report a wrong name or type before the code runs.

Type checkers read classes, not metadata, so the options are written again here. A test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Literal, TypedDict

from .fingerprint import Fingerprint


class UnleasedKeywords(TypedDict, total=False):
    """Options that need neither a request nor a lease."""

    ttl: timedelta | float
    wait: timedelta | float
    operation: str | None
    using: str | None


class OnceKeywords(UnleasedKeywords, total=False):
    """Options that need no request: those of `run_once`, `arun_once` and `once`."""

    lease: timedelta | float | None
    on_abandoned: Literal["retry", "hold"]
    reconcile: Callable[[Any], Any] | None


class Keywords(OnceKeywords, total=False):
    """All options: the fields of `Idempotency`."""

    required: bool
    methods: Collection[str]
    in_progress_status: Literal[202, 409, 429]
    mismatch_status: Literal[409, 422]
    scope: Callable[[Any], str] | None
    anonymous: Literal["shared", "refuse"]
    key: Callable[[Any], str | None] | None
    fingerprint: Fingerprint | Callable[[Any], bytes] | tuple[str, ...] | Literal["request"] | None
    record: Callable[[Any], bool]
    may_replay: Callable[..., bool] | None
    store_body: bool
    max_body_bytes: int
    observe: bool
