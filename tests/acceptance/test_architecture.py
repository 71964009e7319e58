"""ARCHITECTURE.md's path for an auditor is what three requests execute."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import RequestFactory

import django_idempotency
from django_idempotency import idempotent
from tests.acceptance.pages import ROOT
from tests.views import creates

HOME = Path(django_idempotency.__file__).parent / "engine"
WARM = 8
"""Requests before those that are traced: a process reads the settings and prepares the statements in its first ones."""
view = idempotent(creates())


def post(key: str, item: str) -> Any:
    """A request of a user who has logged in."""
    request = RequestFactory().post("/orders/", {"item": item}, "application/json", headers={"Idempotency-Key": key})
    request.user = User(pk=17)
    return view(request)


def entered(key: str, item: str) -> tuple[int, list[str]]:
    """The status of a request, and the files whose functions it executes, in the order of their first ones."""
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(HOME):
            files[path.relative_to(HOME).as_posix()] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        status = post(key, item).status_code
    finally:
        sys.setprofile(before)
    return status, list(files)


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_the_auditors_path_is_what_three_requests_execute() -> None:
    """Of a view in atomic mode: what all three execute, and then a first request, its retry and a mismatch."""
    path = (ROOT / "ARCHITECTURE.md").read_text().partition("## An auditor's path\n")[2].partition("\n## ")[0]
    every, *ends = [re.findall(r"(?m)^1\. `(\S+)`: ", part) for part in re.split(r"(?m)^\w.*:$", path)[1:]]
    for _ in range(WARM):
        post(str(uuid4()), "tea")
    traced = [entered("k", item) for item in ("tea", "tea", "coffee")]
    shown = "\n\n".join("\n".join(files) for _, files in traced)
    assert traced == [(status, every + end) for status, end in zip((201, 201, 422), ends, strict=True)], shown


def test_every_file_that_is_named_exists() -> None:
    """In the page's lists and tables."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([\w/.-]+/[\w.-]+\.\w+|\w+\.py)`", text))
    homes = (
        ROOT,
        ROOT / "django_idempotency",
        HOME,
        HOME / "stores",
        HOME / "declare",
        HOME / "execution",
        HOME / "request",
    )
    assert len(named) > 50
    assert [name for name in sorted(named) if not any((home / name).exists() for home in homes)] == []
