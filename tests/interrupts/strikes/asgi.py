"""Scenarios under ASGI: the event loop in the main thread is struck, while the queries run in a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync
from django.http import HttpRequest

from tests.interrupts.strikes import books, views
from tests.interrupts.strikes.atomic import aplace, atomic, nested, place
from tests.interrupts.strikes.checks import driver, stacks_and_hooks
from tests.interrupts.strikes.engine import Run
from tests.interrupts.strikes.leased import apay, leased
from tests.interrupts.strikes.scenarios import Problems, Scenario

PATIENCE = 10
"""Seconds that the thread may take for what it still has to do as the loop ends."""
Check = Callable[[str, Run], Problems]


def in_the_thread(work: Callable[[], Any]) -> Any:
    """Do it in the thread, and on the connection, that asgiref uses for the queries of all requests."""
    return SyncToAsync.single_thread_executor.submit(work).result(PATIENCE)


def running(work: Callable[[str], Coroutine[Any, Any, Any]]) -> Callable[[str], Any]:
    return lambda key: asyncio.run(work(key))


def asked(view: Callable[[HttpRequest], Any]) -> Callable[[str], Any]:
    async def send(key: str) -> Any:
        return await view(views.request(key, view))

    return running(send)


def and_in_the_thread(check: Check) -> Check:
    """The thread's connection must be as good as the main thread's."""

    def after(key: str, run: Run) -> Problems:
        yield from check(key, run)
        yield from (f"thread: {problem}" for problem in in_the_thread(lambda: [*stacks_and_hooks(), *driver()]))
        for later in (place, nested):
            name = f"{key}-{later.__name__}"
            in_the_thread(partial(later, name))
            if books.orders(name) != 1:
                yield "thread: a later request was acknowledged, and is lost"

    return after


def under_asgi(scenario: Scenario) -> Scenario:
    return replace(
        scenario,
        after=and_in_the_thread(scenario.after),
        let_go=lambda key: in_the_thread(lambda: None),  # it may still be at work as the loop ends
        only_on=("messages", "psycopg2", "mysql"),
    )


ASKED, ASKED_PAID = asked(views.ASKED), asked(views.ASKED_PAID)
SCENARIOS = {
    f"ASGI, {name}": under_asgi(scenario)
    for name, scenario in {
        "view": atomic(ASKED),
        "view, replay": atomic(ASKED, prepare=ASKED),
        "run_once": atomic(running(aplace)),
        "leased view": leased(ASKED_PAID),
        "leased view, replay": leased(ASKED_PAID, prepare=ASKED_PAID),
        "leased run_once": leased(running(apay)),
        "observed view": views.observed(asked(views.ASKED_SEEN)),
        "off, view": views.off(ASKED),
        "off, leased view": views.off(ASKED_PAID, leased=True),
    }.items()
}
