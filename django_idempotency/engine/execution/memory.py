"""The journal of leased work that runs without protection: nothing is kept beyond the attempt.

See Note [One meaning] in `attempt.py`.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from django.db import Error, connections

from ...exceptions import ResultNotStorable
from ..events import harmless
from ..protocol.digests import identify
from ..stores import store_for
from ..stores.transactions import atomically
from .bridge import without_bridge_above
from .claiming import is_alone
from .commits import inside_a_transaction
from .results import encode_step
from .steps import Step, StepJournal
from .table import tell_long_call

T = TypeVar("T")
logger = logging.getLogger("django_idempotency")


STANDS_IN = "_idempotency_stands_in"
"""The attribute that marks an `atomic()` block as a replacement for the one that ATOMIC_REQUESTS would have opened.
Only a request that is not protected has such a block: protected leased work runs without it."""


def standing_in(alias: str | None, work: Callable[[], T]) -> T:
    """Do the work in the transaction that ATOMIC_REQUESTS would have opened. If `alias` is None, don't open one."""
    if alias is None:
        return work()

    def marked() -> T:
        setattr(connections[alias].atomic_blocks[-1], STANDS_IN, True)
        return work()

    return atomically(alias, marked)


class MemoryJournal(StepJournal):
    """The steps of one attempt, kept in memory. A later attempt does not find them.

    Args:
        alias: the database on which `write` steps run.
        lease: how many seconds an attempt would hold its key, if the work were protected.
        operation: the operation's name, for the log.
    """

    def __init__(self, alias: str, lease: float, operation: str) -> None:
        self._alias, self.lease, self._operation = alias, lease, operation
        self._since = time.monotonic()

    def renew(self) -> None:
        self._since = time.monotonic()

    def start_call(self, step: Step, *, keyed: bool | None) -> None:
        self.refuse_transactions(f"operation.call({step.name!r})")

    def write(self, step: Step, function: Callable[[], Any]) -> tuple[Any, str | None]:
        self.refuse_transactions(f"operation.write({step.name!r})")
        value = atomically(self._alias, partial(without_bridge_above, function))
        try:
            return value, encode_step(value)
        except ResultNotStorable as error:
            self.hand_on(step, value, error)
            return value, None

    def refuse_transactions(self, what: str) -> None:
        """Raise the error that protected work would raise inside a transaction."""
        connection: Any = connections[self._alias]
        blocks = [block for block in connection.atomic_blocks if not block._from_testcase]
        if blocks and all(hasattr(block, STANDS_IN) for block in blocks):
            return
        # A database that can't be queried has no open transaction, and perhaps the work doesn't use it at all.
        with suppress(Error):
            if not is_alone(store_for(self._alias)):
                raise inside_a_transaction(what, self._alias)

    def hand_on(self, step: Step, value: Any, error: Exception) -> None:
        step.handed_on = (value,)
        tell_handed_on(f"The step {step.name!r} of {self._operation}", error)

    def tell_long_call(self, step: Step) -> None:
        tell_long_call(identify(scope="", operation=self._operation, key=""), None, step, self._since, self.lease)


def tell_handed_on(what: str, error: Exception) -> None:
    """Report the error that protected work would have raised: in the log and as a warning.

    A test can turn the warning into an error.
    """
    text = f"{what} runs without protection, and its result is handed on as it is. Protected, it raises {error!r}"
    with harmless():
        logger.error(text)
    warnings.warn(text, RuntimeWarning, stacklevel=2)
