from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = """\
what happened                    responses                               counted
50 duplicates, plain view        1 x 201, 49 x 409; retries: same bytes  1 order              ok
50 duplicates, REST framework    1 x 201, 49 x 409; retries: same bytes  1 order              ok
client hangs up, then retries    first not read; retries: same bytes     1 order              ok
kill -9 during the view, retry   lost, 0 orders left; retry: 201         1 order              ok
gateway times out, retry         500; retries: 201, same bytes           1 charge, 1 payment  ok
kill -9 after the charge, retry  lost; retries: 201, same bytes          1 charge, 1 payment  ok
the same, gateway without keys   lost, 409; resolved: 201, same bytes    1 charge, 1 payment  ok
50 duplicates, NOT protected     50 x 201                                50 orders            ok
"""


def demo(*flags: str) -> subprocess.CompletedProcess[str]:
    """The demo as a newcomer runs it: nothing configured, no database given."""
    ours = {"DATABASE_URL", "SHOP_DATA", "SHOP_DATABASE", "DJANGO_SETTINGS_MODULE"}
    return subprocess.run(
        [sys.executable, *flags, str(ROOT / "testproject" / "manage.py"), "demo"],
        env={**{k: v for k, v in os.environ.items() if k not in ours}, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.skipif(find_spec("drf_spectacular") is None, reason="the shop uses the REST framework and OpenAPI")
def test_every_figure_of_the_demo_is_as_promised():
    """One order, one charge each time, fifty without protection, and exit status 0."""
    result = demo()

    assert result.stdout == TABLE
    assert (result.returncode, result.stderr) == (0, "")


def test_the_readme_shows_what_the_demo_prints():
    """The table in the README is this one."""
    readme = re.sub(r"(?m)^    ", "", (ROOT / "README.md").read_text())

    assert TABLE in readme
