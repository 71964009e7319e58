from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE
from typing import IO

import httpx
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


COMMAND = [sys.executable, str(ROOT / "testproject" / "manage.py"), "demo"]
STARTING = "import subprocess, sys; subprocess.run(sys.argv[1:])"
"""A parent, as tox is one."""
pytestmark = pytest.mark.skipif(
    find_spec("drf_spectacular") is None, reason="the shop uses the REST framework and OpenAPI"
)


def environment() -> dict[str, str]:
    """As a newcomer's: nothing configured, no database given."""
    ours = {"DATABASE_URL", "SHOP_DATA", "SHOP_DATABASE", "DJANGO_SETTINGS_MODULE"}
    return {**{k: v for k, v in os.environ.items() if k not in ours}, "PYTHONPATH": str(ROOT)}


def until(end: str, stream: IO[str]) -> str:
    """Everything up to the line with this text."""
    printed = ""
    while end not in printed:
        line = stream.readline()
        assert line, f"the demo has ended: {printed}"
        printed += line
    return printed


def test_every_figure_of_the_demo_is_as_promised(tmp_path):
    """One order, one charge each time, fifty without protection. The shop that is served then ends with its parent.

    The printed pages show a key of each kind, and what a new key and a renamed route leave. The exit status is 0.
    """
    command = [sys.executable, "-c", STARTING, *COMMAND, "--serve"]
    errors = tmp_path / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(command, env=environment(), cwd=ROOT, stdout=PIPE, stderr=stderr, text=True) as parent,
    ):
        try:
            table, said = until("NOT protected", parent.stdout), until("Ctrl-C stops", parent.stdout)
            (admin,) = re.findall(r"admin at (\S+)", said)
            kinds = re.findall(r"(?m)^(stuck|in doubt|half done|two keys|renamed|ran twice) .*\n +(http\S+)$", said)
            with httpx.Client(follow_redirects=True) as browser:
                log_in(browser, admin)
                shown = [browser.get(page).text for _, page in kinds]
        finally:
            parent.kill()
            rest = parent.stdout.read()  # until the last process that could write here has ended
    assert table == TABLE
    assert (rest, errors.read_text()) == ("", "")
    assert [kind for kind, _ in kinds] == ["stuck", "in doubt", "half done", "two keys", "renamed", "ran twice"]
    old = "POST old-payments/"
    operations = ["pay", "pay carefully", "pay", "pay carefully", old, old]
    assert all(operation in page for operation, page in zip(operations, shown, strict=True))
    with pytest.raises(httpx.ConnectError):
        httpx.get(admin)


def log_in(browser: httpx.Client, admin: str) -> None:
    (token,) = set(re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', browser.get(admin).text))
    data = {"username": "demo", "password": "demo", "csrfmiddlewaretoken": token, "next": "/admin/"}
    browser.post(f"{admin}login/", data=data).raise_for_status()


def test_the_readme_shows_what_the_demo_prints():
    """The table in the README is this one."""
    readme = re.sub(r"(?m)^    ", "", (ROOT / "README.md").read_text())

    assert TABLE in readme
