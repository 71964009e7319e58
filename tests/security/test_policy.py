"""SECURITY.md is true: it names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POLICY = (ROOT / "SECURITY.md").read_text()


def test_every_defence_names_tests_that_exist() -> None:
    """In the file that it says."""
    rows = [line for line in POLICY.splitlines() if line.startswith("| ") and not line.startswith("| Attack")]
    assert rows
    for row in rows:
        named = re.findall(r"`(tests/\S+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            tree = ast.parse((ROOT / file).read_text())
            assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (file, test)


def test_every_attack_of_this_folder_stands_in_the_policy() -> None:
    """Of the files that attack, at least one test each; and the README leads here."""
    files = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {Path(__file__).name}
    assert files == set(re.findall(r"tests/security/(\w+\.py)::", POLICY))
    assert "[SECURITY.md](SECURITY.md)" in (ROOT / "README.md").read_text()
