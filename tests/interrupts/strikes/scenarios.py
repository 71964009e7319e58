"""What is struck: a table of pieces of work, each a small function of a key, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction

from tests.interrupts.strikes import books
from tests.interrupts.strikes.engine import Run
from tests.shopapp.models import Order

Problems = Iterator[str]


def nothing(*args: Any) -> None:
    pass


def right(*args: Any) -> Problems:
    yield from ()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """
    Args:
        act: what is struck.
        expected: the errors that it raises when nothing strikes it.
        prepare: makes the state that it meets.
        let_go: ends what `prepare` has begun, before anything is checked.
        after: what must be true after the strike.
        retry: what the client sends again; `act`, unless that is another one.
        end: what must be true after the retry.
        leased: whether later requests are leased, too, and a retry may have to wait for the lease.
        inside: whether it runs in a block of the caller's, which has an order of its own. Where that begins and ends is
            Django's, and is not struck.
        swallows: whether the caller catches what strikes, and goes on.
        settings: Django's, while it is struck and in each request after that.
        atomic_requests: whether the default connection has ATOMIC_REQUESTS.
        only_on: the vendors of the databases, or the ways, in which the scenario exists.
    """

    act: Callable[[str], Any]
    expected: tuple[type[BaseException], ...] = ()
    prepare: Callable[[str], Any] = nothing
    let_go: Callable[[str], Any] = nothing
    after: Callable[[str, Run], Problems] = right
    retry: Callable[[str], Any] | None = None
    end: Callable[[str], Problems] = right
    leased: bool = False
    inside: bool = False
    swallows: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    atomic_requests: bool = False
    only_on: tuple[str, ...] = ()


def callers_block(scenario: Scenario, key: str, run_it: Callable[[], Run]) -> Run:
    """Run it inside the caller's block, if the scenario has one."""
    if not scenario.inside:
        return run_it()
    run = Run()
    try:
        with transaction.atomic():
            Order.objects.create(reference=f"{key} outer")
            run = run_it()
            if run.error is not None and not scenario.swallows:
                raise run.error
    except BaseException as error:
        if error is not run.error:
            raise
    return run


def order_beside_key(key: str, run: Run) -> Problems:
    """The order and its key are committed together, or neither is, and what was acknowledged is there."""
    number, done = books.orders(key), books.is_done(key)
    if run.error is None and number != 1:
        yield f"acknowledged, and there are {number} orders"
    if number != done:
        yield f"{number} orders, and the key is {'completed' if done else 'not completed'}"


def one_order(key: str) -> Problems:
    if (number := books.orders(key)) != 1:
        yield f"in the end there are {number} orders"
    if not books.is_done(key):
        yield f"in the end the key is {getattr(books.row(key), 'status', 'gone')}"
