"""A data change outside of `operation.write` runs again with every retry. With DEBUG, warn about it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.conf import settings

from ..stores import Store
from .operation import Operation

_CHANGE = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|MERGE|REPLACE|TRUNCATE)\b", re.IGNORECASE)


def warned_about(store: Store, operation: Operation) -> AbstractContextManager[Any]:
    """With DEBUG, warn about each data change on the store's alias that no step of the operation covers."""
    if not settings.DEBUG:
        return nullcontext()

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not operation.writing and _CHANGE.match(str(sql)) and not store.owns(str(sql)):
            warnings.warn(
                f"A leased view changed data outside of operation.write(): {str(sql)[:200]!r}. "
                "A retry would do it again. Put it into a step: operation.write(name, function, …).",
                RuntimeWarning,
                stacklevel=2,
            )
        return execute(sql, params, many, context)

    return store.connection.execute_wrapper(watch)
