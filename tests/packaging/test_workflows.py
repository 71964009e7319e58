"""The workflows of .github: what they name is there."""

from __future__ import annotations

import re

from tests.packaging.conftest import ROOT

WORKFLOWS = {path.name: path.read_text() for path in (ROOT / ".github/workflows").iterdir()}


def test_the_weekly_run_has_each_part() -> None:
    """All but two, whose programs a hosted machine lacks."""
    (listed,) = re.findall(r"part: \[(.+)\]", WORKFLOWS["long-runs.yml"])
    (parts,) = re.findall(r'all\) "\$0" (.+) \|\|', (ROOT / ".ci/long_runs").read_text())
    assert set(listed.split(", ")) == set(parts.split()) - {"clusters", "chaos-mysql"}


def test_each_environment_is_one_of_tox() -> None:
    """What a workflow runs is what a developer runs."""
    tox = (ROOT / "tox.ini").read_text()
    named = {name for text in WORKFLOWS.values() for name in re.findall(r"tox run -e (\S+)", text)}
    assert [name for name in named if f"[testenv:{name}]" not in tox] == []
