"""Strikes at each place where CPython runs signal handlers; then the books.

A sample here: each scenario on one of PostgreSQL's ways, and a third of them on another database. More of it, by a seed
that makes the same plan again: `INTERRUPTS=20 INTERRUPTS_SEED=7 tox run -e interrupts`, or all of it: `INTERRUPTS=all`.
`INTERRUPTS_AT=transaction.py:` strikes only the places whose names contain that.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
from django.db import connection, connections
from django.test import override_settings

from django_idempotency.exceptions import OperationInProgress
from tests.backends import configured
from tests.interrupts.strikes import asgi, atomic, books, elsewhere, leased, maintenance, views
from tests.interrupts.strikes.checks import Surroundings, arrived, driver, server, stacks_and_hooks
from tests.interrupts.strikes.engine import KINDS, Hung, Place, places, strike, watching
from tests.interrupts.strikes.figures import AT, LONGER, SEED
from tests.interrupts.strikes.scenarios import Scenario, callers_block
from tests.interrupts.strikes.ways import going, reset, ways

SAMPLE = 4
"""Strikes of each scenario on each way."""
HANGS = 20
"""Seconds after which one strike and its checks count as hung."""
SHOWN = 4
"""Places that are listed for each kind of failure."""
SCENARIOS = {
    **atomic.SCENARIOS,
    **views.SCENARIOS,
    **asgi.SCENARIOS,
    **leased.SCENARIOS,
    **maintenance.SCENARIOS,
}

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(7200, method="thread"),
    # A strike between a call of an `async def` function and its `await`.
    pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited:RuntimeWarning"),
    # A strike between the driver's return of a connection and Django's assignment.
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.* was deleted while still open:ResourceWarning"),
]
_numbers = count(1)


def cases() -> Iterator[Any]:
    """The ways and names of the scenarios. In a sample, versions of Python have different thirds of them."""
    for number, (name, scenario) in enumerate(SCENARIOS.items()):
        on = [way for way in ways() if not scenario.only_on or {way, connection.vendor} & set(scenario.only_on)]
        if LONGER == "1" and on:
            on = [on[number % len(on)]] if len(ways()) > 1 else on[: (number + sys.version_info.minor) % 3 == 0]
        yield from (pytest.param(way, name, id=f"{way}: {name}") for way in on)


@pytest.fixture(autouse=True)
def thread_without_connections() -> Iterator[None]:
    yield
    asgi.in_the_thread(connections.close_all)


@pytest.mark.parametrize(("way", "name"), list(cases()))
def test_a_strike_leaves_nothing_torn(way: str, name: str, record_property: Any) -> None:
    """Wherever an exception strikes, the connection works or is closed, and nothing is lost, doubled or stuck."""
    scenario = SCENARIOS[name]
    with going(way, atomic_requests=scenario.atomic_requests), override_settings(**scenario.settings):
        strike_all(f"{way}: {name}", scenario, record_property)


@pytest.mark.only_on("postgresql")  # once is enough for keys that are not in a database
@pytest.mark.parametrize("name", elsewhere.scenarios("memory"))
@pytest.mark.parametrize("backend", elsewhere.KINDS)
def test_a_strike_leaves_no_torn_key_in_a_backend(backend: str, name: str, settings: Any, record_property: Any) -> None:
    """The same for keys outside the database."""
    settings.IDEMPOTENCY = {"BACKENDS": {backend: configured(backend)}}
    strike_all(f"{backend}: {name}", elsewhere.scenarios(backend)[name], record_property)


def strike_all(case: str, scenario: Scenario, record_property: Any) -> None:
    with books.observing(), watching(), hanging_up():
        found = all_places(scenario)
        plan = chosen(case, found)
        began, torn = time.monotonic(), {}
        for place, kind in plan:
            try:
                wrong = struck(scenario, place, kind)
            except Hung:
                wrong = ["hung"]
            if wrong:
                torn.setdefault(tuple(dict.fromkeys(wrong)), []).append(f"{kind.__name__} at {place}")
                reset()
                books.reset()
    number = sum(map(len, torn.values()))
    record_property("interrupts", [len(plan), len(found), number])
    if torn:
        summary = f"INTERRUPTS_SEED={SEED}: {number} of {len(plan)} strikes at {len(found)} places"
        pytest.fail(told(torn, f"{summary}, in {time.monotonic() - began:.0f} seconds"), pytrace=False)


def all_places(scenario: Scenario) -> list[Place]:
    """Where the scenario can be struck. The first run fills caches, and each must go well."""
    for _ in range(2):
        key, found = fresh(), []
        scenario.prepare(key)
        atomic.HOOKS.clear()
        run = callers_block(scenario, key, partial(places, partial(scenario.act, key), found))
        if run.error is not None and not isinstance(run.error, scenario.expected):
            raise run.error
        scenario.let_go(key)
    assert checked(scenario, key, run) == []
    return found


def chosen(case: str, found: list[Place]) -> list[tuple[Place, type[BaseException]]]:
    chance = random.Random(f"{SEED} {case}")
    found = [place for place in found if AT in str(place)]
    if LONGER != "all":
        found = chance.sample(found, min(len(found), SAMPLE * int(LONGER)))
    return [(place, chance.choice(KINDS)) for place in found]


def struck(scenario: Scenario, place: Place, kind: type[BaseException]) -> list[str]:
    """Strike once, and return what is wrong afterwards."""
    signal.setitimer(signal.ITIMER_REAL, HANGS)
    key = fresh()
    scenario.prepare(key)
    atomic.HOOKS.clear()
    around = Surroundings()
    run = callers_block(scenario, key, partial(strike, place, partial(scenario.act, key), kind))
    scenario.let_go(key)
    return [*around(), *([] if scenario.swallows else arrived(run)), *checked(scenario, key, run)]


def checked(scenario: Scenario, key: str, run: Any) -> list[str]:
    between_requests()
    wrong = [*stacks_and_hooks(), *driver(), *server(), *scenario.after(key, run), *later(scenario)]
    if not wrong:  # the rest would only say the same
        wrong = [*retried(scenario, key), *stacks_and_hooks(), *driver(), *server(), *scenario.end(key)]
    return wrong


def later(scenario: Scenario) -> Iterator[str]:
    """Two later requests on the connection are committed."""
    for request in (atomic.place, leased.pay if scenario.leased else atomic.nested):
        key = fresh()
        try:
            request(key)
        except Exception as error:
            yield f"a later request raises {type(error).__name__}: {error!s:.80}"
        else:
            if books.orders(key) != 1:
                yield "a later request was acknowledged, and is lost"
        between_requests()


def retried(scenario: Scenario, key: str) -> Iterator[str]:
    """The client sends its request again, after the lease if need be."""
    for last in (False, True):
        try:
            (scenario.retry or scenario.act)(key)
        except OperationInProgress:
            if last or not scenario.leased:
                yield "the key is stuck"
            books.lapse(key)
        except Exception as error:
            yield f"the retry raises {type(error).__name__}: {error!s:.80}"
            return
        else:
            return


def between_requests() -> None:
    """As in a worker: only a pool gets its connection back."""
    if connection.settings_dict["OPTIONS"].get("pool"):
        connection.close_if_unusable_or_obsolete()


def fresh() -> str:
    return f"k{next(_numbers)}"


class hanging_up:
    """Whatever hangs is interrupted."""

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGALRM, self.hung)

    def hung(self, *_: object) -> None:
        raise Hung

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)


def told(torn: dict[tuple[str, ...], list[str]], summary: str) -> str:
    lines = [summary]
    for wrong, where in sorted(torn.items(), key=lambda pair: -len(pair[1])):
        lines += [f"{len(where)} times: {'; '.join(wrong)}", *(f"    {place}" for place in where[:SHOWN])]
    return "\n".join(lines)
