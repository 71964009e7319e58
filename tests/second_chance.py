"""A second chance for a failed test: tests/conftest.py loads this plugin where SECOND_CHANCE is set, as .ci/run does.

After the run the failed tests run once more, in one process, without the others. If all of them pass, the run passes,
and its summary names each of them as FLAKY. A few tests only: a defect fails more than LIMIT of them.
Tests in FINAL get no second chance. They look for what goes wrong once in many times, so one failure is the finding.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FINAL = ("tests/clusters/", "tests/concurrency/", "tests/crash/", "tests/interop/", "tests/security/")
LIMIT = 5
FLAKY = "FLAKY (failed once, passed alone): "


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the main process gets the reports of pytest-xdist's processes
        config.pluginmanager.register(SecondChance())


class SecondChance:
    """What one run has to remember."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.flaky: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.TESTS_FAILED and has_one(self.failed) and passes(session.config, self.failed):
            session.exitstatus = pytest.ExitCode.OK
            self.flaky = self.failed

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test in self.flaky:
            terminalreporter.write_line(FLAKY + test, yellow=True)


def has_one(failed: list[str]) -> bool:
    return 0 < len(failed) <= LIMIT and not any(test.startswith(FINAL) for test in failed)


def passes(config: pytest.Config, tests: list[str]) -> bool:
    """Run these tests in a new process, with a server of its own. Its output goes to ours."""
    left_out = {"PYTEST_ADDOPTS", "SECOND_CHANCE"}
    if "IDEMPOTENCY_EMBEDDED_FOR" in os.environ:  # the first run's server: a test may have stopped it
        left_out.add("DATABASE_URL")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    print(f"\nThe second chance of {len(tests)} failed tests, without the others:", flush=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=config.rootpath, env=environment).returncode == 0
