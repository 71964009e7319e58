"""schemathesis sends the same short keys again and again, and most of its requests would only ever be 422."""

from __future__ import annotations

from itertools import count
from typing import Any
from uuid import uuid4

import schemathesis

from django_idempotency.engine.protocol.key_syntax import InvalidKey, parse_header

HEADER = "Idempotency-Key"
USED: set[str] = set()
TURN = count()


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Three of four requests that would come with a valid key for the second time get a new one."""
    try:
        key = parse_header((case.headers or {}).get(HEADER, ""))
    except InvalidKey:
        return
    if key in USED and next(TURN) % 4:
        case.headers[HEADER] = f'"{uuid4()}"'
    USED.add(key)
