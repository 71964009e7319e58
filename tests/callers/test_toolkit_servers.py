"""What real servers make of white space in `Authorization`, before django-oauth-toolkit and the package read it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import http_post, serving

pytest.importorskip("oauth2_provider")
PROJECT = "tests.callers.toolkit_project"
SERVERS = {
    "gunicorn": ("gunicorn", f"{PROJECT}:wsgi", "--bind", "fd://{fd}"),
    "uvicorn": ("uvicorn", f"{PROJECT}:asgi", "--fd", "{fd}"),
}


@pytest.fixture(params=SERVERS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URL of the shop, and the key of its user's session."""
    environment = {**os.environ, "TOOLKIT_DATABASE": str(tmp_path / "shop.sqlite3")}
    del environment["DJANGO_SETTINGS_MODULE"]
    filled = subprocess.run(
        [sys.executable, "-m", PROJECT], env=environment, capture_output=True, text=True, timeout=100
    )
    assert filled.returncode == 0, filled.stderr
    with serving(*SERVERS[request.param], env=environment) as url:
        yield url, filled.stdout.strip()


@pytest.mark.server
def test_a_tab_after_bearer_hides_no_client(shop: tuple[str, str]) -> None:
    """One key of a user's session and of two clients of this user is three requests, with a space and with a TAB."""
    url, session = shop

    def replayed(**headers: str) -> str:
        response = http_post(f"{url}/pay", headers={"Idempotency-Key": "k", **headers})
        assert response.status_code == 201
        return response.headers["Idempotency-Replayed"]

    assert replayed(Cookie=f"sessionid={session}") == "false"
    assert [replayed(Authorization=f"Bearer{space}token-B") for space in ("\t", " ", "\t", " \t")] == [
        "false",
        "true",
        "true",
        "true",
    ]
    assert [replayed(Authorization=f"Bearer{space}token-A") for space in (" ", "\t")] == ["false", "true"]
    assert replayed(Cookie=f"sessionid={session}") == "true"
