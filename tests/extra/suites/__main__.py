"""The tests of Django and of the REST framework, with every view protected and a key in every unsafe request.

    python -m tests.extra.suites [--twice] [--first | --last] [django | rest_framework] [suite ...]

--twice: send each finally answered request again, and compare status, bytes and headers.
--first, --last: only the runs with the package in this place of INSTALLED_APPS.
suite: run only these, instead of those that `suites.toml` lists.

Both run on SQLite in memory. Django's tests run twice: with the package as the last of INSTALLED_APPS, and as the
first, where Django finds its templates before the admin's. `suites.toml` lists what fails with the package and passes
without, with the reasons.
Any other failure fails the run, and so does an entry of the list that passes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = Path(sys.prefix) / "framework-sources"
SUITES = tomllib.loads((HERE / "suites.toml").read_text())
TIMEOUT = 4 * 3600
"""Seconds for one framework: a few minutes on two quiet cores, and more than half an hour on two busy ones."""


@dataclass(frozen=True)
class Framework:
    """A framework's tests: where they are, and how to run them.

    project: its name in the package index. Its source distribution has the tests.
    folder: where to run, in the sources.
    order: where the package stands in INSTALLED_APPS.
    """

    name: str
    project: str
    folder: str
    command: tuple[str, ...]
    labels: tuple[str, ...]
    order: str = "last"

    def run(self, mode: str, labels: Collection[str]) -> dict[str, Any]:
        """Run the tests in a process of their own, and return the report of the hooks."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            path = os.pathsep.join([str(HERE / "hooks"), str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")])
            environment = {
                "FRAMEWORKS_MODE": mode,
                "FRAMEWORKS_ORDER": "last" if mode == "bare" else self.order,
                "FRAMEWORKS_REPORT": str(report),
                "PYTHONPATH": path,
            }
            subprocess.run(
                [sys.executable, *self.command, *labels],
                cwd=self.sources() / self.folder,
                env={**os.environ, **environment},
                timeout=TIMEOUT,
                check=False,
            )
            return json.loads(report.read_text())

    def sources(self) -> Path:
        """The sources of the installed version, fetched if they are not there yet."""
        release = f"{self.project}-{version(self.project)}"
        if not (SOURCES / release).exists():
            wanted = release.replace("-", "==")
            fetch = ["download", "--quiet", "--no-deps", "--no-binary", self.project, "--dest", str(SOURCES), wanted]
            subprocess.run([sys.executable, "-m", "pip", *fetch], check=True)
            subprocess.run(["tar", "-xf", f"{release}.tar.gz"], cwd=SOURCES, check=True)
        return SOURCES / release


DJANGO = Framework(
    name="django",
    project="django",
    folder="tests",
    command=("runtests.py", "--settings=django_settings", "--parallel=1", "--noinput"),
    labels=tuple(SUITES["django"]),
)
DJANGO_FIRST = replace(DJANGO, order="first")
REST_FRAMEWORK = Framework(
    name="rest_framework",
    project="djangorestframework",
    folder=".",
    command=("-m", "pytest", "-q", "--tb=short", "-p", "no:randomly", "-p", "rest_framework_plugin"),
    labels=("tests",),
)


def main(*arguments: str) -> int:
    mode = "twice" if "--twice" in arguments else "once"
    orders = [order for order in ("first", "last") if f"--{order}" in arguments] or ["first", "last"]
    name, *suites = [argument for argument in arguments if not argument.startswith("-")] or [""]
    wanted = [each for each in (DJANGO, DJANGO_FIRST, REST_FRAMEWORK) if name in ("", each.name)]
    chosen = [each for each in wanted if each.order in orders]
    return max(check(replace(each, labels=tuple(suites) or each.labels), mode) for each in chosen)


def check(framework: Framework, mode: str) -> int:
    """Run one framework's tests, and say what is not on the list. Returns the exit status."""
    report = framework.run(mode, framework.labels)
    failed = report["failed"]
    # What fails in the same way without the package is a matter of this machine: a tool or a right that is missing.
    without = framework.run("bare", list(failed))["failed"] if failed else {}
    different = failed.keys() - without.keys()
    reasons = listed()
    unexpected = different - reasons.keys()
    passing = (reasons.keys() & set(report["run"])) - different
    figures = report["figures"]

    print(f"\n{framework.project} {version(framework.project)}, every view protected, mode {mode!r}")
    print(f"the package is the {framework.order} of INSTALLED_APPS")
    print(f"{len(report['run'])} tests, {report['skipped']} skipped, {len(without)} that fail without the package too")
    print(*(f"{count} {what}" for what, count in figures.items()), sep=", ")
    for reason, count in Counter(reasons[test] for test in different - unexpected).most_common():
        print(f"{count} on the list: {reason}")
    for test in sorted(unexpected):
        print(f"\nFAILS WITH THE PACKAGE ONLY, and is not on the list: {test}\n{failed[test]}")
    for test in sorted(passing):
        print(f"NO DIFFERENCE, and is on the list: {test}")
    protected = figures.get("requests under a key", 0)
    return int(bool(unexpected or passing or figures.get("replays that differ") or not protected))


def listed() -> dict[str, str]:
    """The reason for each test that is known to fail with the package only."""
    return {test: group["reason"] for group in SUITES["differences"] for test in group["tests"]}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
