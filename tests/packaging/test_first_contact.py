"""The tutorial as a new user would follow it, with the wheel, on each supported Django."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.tutorial import Reader, follow_tutorial, reader
from tests.packaging.conftest import INSTALLATION, PAIRS, ROOT, Distributions, interpreter, run

__all__ = ["reader"]


@pytest.mark.timeout(INSTALLATION + 120)
@pytest.mark.parametrize(("python", "django"), PAIRS)
def test_the_tutorial_works_with_the_wheel(
    python: str, django: str, reader: Reader, distributions: Distributions, tmp_path: Path
) -> None:
    """`python3` is another one, pip is held to one Django, and the checkout is the wheel; the rest is as written."""
    command = tmp_path / "bin/python3"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {interpreter(python)} "$@"\n')
    command.chmod(0o755)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"django~={django}.0\n")
    reader.variables = {
        "PATH": f"{command.parent}:{reader.environment()['PATH']}",
        "PIP_CONSTRAINT": str(constraints),
    }

    page = (ROOT / "docs/tutorial.md").read_text()
    assert page.count(" ../django-idempotency ") == 1
    follow_tutorial(reader, page.replace(" ../django-idempotency ", f" {distributions.wheel} "))

    assert run(reader.folder / ".venv/bin/python", "-m", "django", "--version").startswith(f"{django}.")
