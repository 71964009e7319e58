"""A pytest plugin that first notes which tests run which lines, and then forks its process for each break."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from time import monotonic
from types import CodeType
from typing import Any, NoReturn

import psutil
import pytest
from django.db import DatabaseError, connections
from mutmut.mutation.trampoline import set_mutant_under_test
from pytest_django.plugin import blocking_manager_key

PATIENCE = 60
"""Seconds beyond `--seconds` until a process is ended: the last test may take 30, and as long to tear down."""
OUTCOMES = {0: "survived", 1: "seen", 2: "survived all tests that there was time for"}
"""What the exit status of a process says. 1 is also Python's own, of an error outside of a test."""
DID_NOT_END = "seen by a test that did not end"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mutation")
    group.addoption("--write-trace", help="run the tests, and write to this file which lines each one runs")
    group.addoption("--read-trace", help="that file, for --breaks")
    group.addoption("--breaks", help="a file with breaks, for each of which to run the tests")
    group.addoption("--seconds", type=int, default=60, help="of tests for each break")
    group.addoption("--clean", type=int, default=0, help="as many runs without a break come first")
    group.addoption("--seed", type=int, default=0, help="of the choice of functions for --clean")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Not earlier: the fixture of `Breaking` takes the place of one that pytest-django has."""
    option = session.config.getoption
    if (trace := option("write_trace")) is not None:
        session.config.pluginmanager.register(Tracing(Path(trace)))
    elif (breaks := option("breaks")) is not None:
        session.config.pluginmanager.register(Breaking(session, Path(option("read_trace")), Path(breaks)))


def pytest_runtest_setup() -> None:
    """No test may use the SQL that another one, or the making of the database, has made before the fork."""
    from django_idempotency.engine.stores import _store

    _store.cache_clear()  # with it goes the SQL


def function_of(name: str) -> str:
    return name.partition("__mutmut_")[0]


def commits(test: pytest.Item) -> bool:
    """Whether it isn't in a transaction that is rolled back."""
    marker = test.get_closest_marker("django_db")
    return marker is None or bool(marker.args or marker.kwargs)


class Tracing:
    """Which test runs which lines of the functions that can be broken, and how long each test takes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.functions: dict[CodeType, str] = {}
        """The name of the function that each piece of code is of."""
        self.lines: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        """The numbers of the tests that run a line of a function."""
        self.seconds: dict[str, float] = {}
        self.run: set[tuple[str, int]] = set()
        """What the current test has run."""

    def pytest_collection_finish(self) -> None:
        sys.monitoring.use_tool_id(sys.monitoring.COVERAGE_ID, "mutation")
        sys.monitoring.register_callback(sys.monitoring.COVERAGE_ID, sys.monitoring.events.LINE, self.note)
        for path in Path("django_idempotency").rglob("*.py"):
            if "__mutmut_orig" in path.read_text():
                module = import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
                for name, made in vars(module).items():
                    if name.startswith("mutants_"):
                        self.monitor(
                            made["_mutmut_orig"].__code__, f"{module.__name__}.{name[8:]}".removesuffix("__mutmut")
                        )

    def monitor(self, code: CodeType, function: str) -> None:
        self.functions[code] = function
        sys.monitoring.set_local_events(sys.monitoring.COVERAGE_ID, code, sys.monitoring.events.LINE)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):  # a function inside of it
                self.monitor(constant, function)

    def note(self, code: CodeType, line: int) -> Any:
        self.run.add((self.functions[code], line))
        return sys.monitoring.DISABLE  # until the next test

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.run.clear()
        sys.monitoring.restart_events()
        since, failed = monotonic(), item.session.testsfailed
        result = yield
        if item.session.testsfailed == failed:
            self.seconds[item.nodeid] = monotonic() - since
            for function, line in self.run.copy():
                self.lines[function][line].append(len(self.seconds) - 1)
        return result

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps({"seconds": self.seconds, "lines": self.lines}))


class Breaking:
    """Instead of the tests: the tests of each break, in a fork of this process and on a copy of the database."""

    def __init__(self, session: pytest.Session, trace: Path, breaks: Path) -> None:
        set_mutant_under_test("")
        traced = json.loads(trace.read_text())
        self.seconds: dict[str, float] = traced["seconds"]
        self.lines: dict[str, dict[str, list[int]]] = traced["lines"]
        self.breaks: dict[str, list[int]] = json.loads(breaks.read_text())
        """The lines of the statement that each one changes, in the original function; none: the whole function."""
        self.outcomes, self.output = breaks.with_suffix(".outcomes"), breaks.with_suffix(".output").absolute()
        self.session = session
        self.database_access = session.config.stash[blocking_manager_key].unblock
        self.seconds_each: int = session.config.getoption("seconds")
        self.copies = 0
        """The number of the last copy of the database."""
        self.is_used = True
        """Whether a test may have left something in it."""
        self.seen: Counter[tuple[str, str]] = Counter()
        """How many breaks of a function, or of a module, a test has seen."""
        self.seen_by, self.sees = multiprocessing.Pipe(duplex=False)

    def pytest_collection_finish(self) -> None:
        self.items = {item.nodeid: item for item in self.session.items}

    @pytest.fixture(scope="session")
    @staticmethod
    def django_db_setup() -> None:
        """The database was made before the fork."""

    def pytest_runtestloop(self) -> bool:
        from django.test.utils import setup_databases, teardown_databases

        with self.database_access():
            made = setup_databases(verbosity=0, interactive=False, serialized_aliases=())
        gc.freeze()  # or each process copies most of the memory as it collects
        self.demand_that_nothing_fails()
        with self.outcomes.open("w", buffering=1) as outcomes:
            for name in self.breaks:
                outcome = self.outcome(name)
                outcomes.write(f"{name}: {outcome}\n")
                if outcome != "seen":
                    print(f"{name}: {outcome}", flush=True)
        with self.database_access():
            self.drop_copies()
            teardown_databases(made, verbosity=0)
        return True

    def demand_that_nothing_fails(self) -> None:
        """Else a test that fails now and then would see breaks by chance."""
        option = self.session.config.getoption
        functions = sorted({function_of(name) for name in self.breaks} & self.lines.keys())
        for function in random.Random(option("seed")).sample(functions, min(option("clean"), len(functions))):
            outcome = self.outcome(f"{function}__mutmut_none")  # there is no such break
            if not outcome.startswith("survived"):
                output = self.output.read_text()
                pytest.exit(f"The tests of {function}, without a break: {outcome}\n{output}", returncode=1)

    def outcome(self, name: str) -> str:
        """Run the tests of a break in a process of their own, until one fails."""
        tests = self.tests(name)
        if not tests:
            return "not run by a test"
        if self.is_used:
            with self.database_access():
                self.copy_databases()
        process = multiprocessing.get_context("fork").Process(target=self.run, args=[name, tests])
        process.start()
        process.join(self.seconds_each + PATIENCE)
        self.is_used = process.exitcode not in OUTCOMES
        if self.seen_by.poll():
            test = self.seen_by.recv()
            self.seen.update([(function_of(name), test), (function_of(name).rpartition(".")[0], test)])
            self.is_used |= commits(self.items[test])
        if process.exitcode is None:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for member in family:
                with suppress(psutil.NoSuchProcess):
                    member.kill()
            process.join()
            return DID_NOT_END
        return OUTCOMES.get(process.exitcode, f"seen, as the process ended with status {process.exitcode}")

    def tests(self, name: str) -> list[str]:
        """Those that run the statement which is broken.

        First are those that have seen most for the time they take, and those named after the module; then the quickest
        of each file, then the second of each: tests of one file often look at the same thing.
        """
        function = function_of(name)
        module, _, _ = function.rpartition(".")
        named = f"/test_{module.rpartition('.')[2]}"
        lines = self.lines.get(function, {})
        broken = {str(line) for line in self.breaks.get(name, ())} or lines.keys()
        names = [*self.seconds]
        found = {names[test] for line in broken for test in lines.get(line, ())}
        ranks: dict[str, tuple[float, bool, int]] = {}
        of_file: Counter[str] = Counter()
        for test in sorted(found, key=self.seconds.__getitem__):
            file = test.partition("::")[0]
            seen = 3 * self.seen[function, test] + self.seen[module, test]
            ranks[test] = (-seen / (self.seconds[test] + 0.1), named not in test, of_file[file])
            of_file[file] += 1
        return sorted(ranks, key=ranks.__getitem__)

    def run(self, name: str, tests: list[str]) -> NoReturn:
        """The process of a break."""
        with self.output.open("w") as output:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(output.fileno(), stream.fileno())
        for connection in connections.all():
            copy = connection.creation.get_test_db_clone_settings(str(self.copies))
            connection.settings_dict.update(copy)  # of all threads
        set_mutant_under_test(name)
        items = [self.items[test] for test in tests]
        since, status = monotonic(), 0
        for item, following in pairwise([*items, None]):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.session.testsfailed:
                self.sees.send(item.nodeid)
                status = 1
                break
            if monotonic() - since > self.seconds_each:
                status = 2
                break
        plugins = self.session.config.pluginmanager
        plugins.unregister(name="terminalreporter")  # its summary takes longer than the tests
        plugins.hook.pytest_sessionfinish(session=self.session, exitstatus=status)  # tears down what is left
        sys.stdout.flush()
        os._exit(status)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print(report.nodeid, report.longreprtext, sep="\n")

    def copy_databases(self) -> None:
        """Under new names, because a process that was ended can leave a session in the last ones."""
        self.drop_copies()
        self.copies += 1
        for connection in connections.all():
            connection.creation.clone_test_db(str(self.copies), verbosity=0)

    def drop_copies(self) -> None:
        for connection in connections.all() if self.copies else ():
            with suppress(DatabaseError):
                connection.creation.destroy_test_db(suffix=str(self.copies), verbosity=0)
            connection.close()
