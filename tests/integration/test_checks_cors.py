"""W003: what django-cors-headers keeps from browsers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import Warning, run_checks
from django.test import modify_settings, override_settings

from django_idempotency.checks import check_cors

CANNOT_SEND = Warning(
    "scripts of other origins cannot send Idempotency-Key, which CORS_ALLOW_HEADERS leaves out.",
    hint="Set CORS_ALLOW_HEADERS = [*corsheaders.defaults.default_headers, 'idempotency-key'].",
    id="django_idempotency.W003",
)
CANNOT_READ = Warning(
    "scripts of other origins cannot read Idempotency-Replayed and Retry-After, which CORS_EXPOSE_HEADERS leaves out.",
    hint="Set CORS_EXPOSE_HEADERS = ['Idempotency-Replayed', 'Retry-After'].",
    id="django_idempotency.W003",
)
ALLOWED = ["accept", "IDEMPOTENCY-key"]
EXPOSED = ("idempotency-REPLAYED", "retry-after")


@pytest.fixture
def _installed() -> Iterator[None]:
    pytest.importorskip("corsheaders")
    with modify_settings(INSTALLED_APPS={"append": "corsheaders"}):
        yield


def test_without_django_cors_headers_nothing_is_said() -> None:
    """The headers may be set by a proxy."""
    assert check_cors(None) == []


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ({}, [CANNOT_SEND, CANNOT_READ]),
        ({"CORS_ALLOW_HEADERS": ALLOWED}, [CANNOT_READ]),
        ({"CORS_EXPOSE_HEADERS": EXPOSED}, [CANNOT_SEND]),
        ({"CORS_ALLOW_HEADERS": ALLOWED, "CORS_EXPOSE_HEADERS": EXPOSED}, []),
        ({"CORS_ALLOW_HEADERS": ["*"], "CORS_EXPOSE_HEADERS": ["*"]}, []),
        ({"CORS_ALLOW_HEADERS": None, "CORS_EXPOSE_HEADERS": EXPOSED}, [CANNOT_SEND]),
        (
            {"CORS_ALLOW_HEADERS": ["*"], "CORS_EXPOSE_HEADERS": ["*"], "CORS_ALLOW_CREDENTIALS": True},
            [CANNOT_SEND, CANNOT_READ],
        ),
    ],
)
def test_what_is_missing_is_named(given: dict[str, Any], messages: list[Warning]) -> None:
    """In whatever case it is written; with credentials an asterisk is a header's name."""
    with override_settings(**given):
        assert check_cors(None) == messages


@pytest.mark.usefixtures("_installed")
def test_one_header_of_two() -> None:
    """Only the one that is missing is named."""
    with override_settings(CORS_ALLOW_HEADERS=ALLOWED, CORS_EXPOSE_HEADERS=["Retry-After"]):
        (message,) = check_cors(None)
    assert message.msg.startswith("scripts of other origins cannot read Idempotency-Replayed, which")


@pytest.mark.usefixtures("_installed")
def test_the_projects_own_names_count() -> None:
    """HEADER and REPLAYED_HEADER."""
    with override_settings(
        IDEMPOTENCY={"HEADER": "X-Key", "REPLAYED_HEADER": "X-Replayed"},
        CORS_ALLOW_HEADERS=["x-key"],
        CORS_EXPOSE_HEADERS=["x-replayed", "retry-after"],
    ):
        assert check_cors(None) == []


@pytest.mark.usefixtures("_installed")
def test_an_impossible_setting_is_left_to_e001() -> None:
    """One message for one mistake."""
    with override_settings(IDEMPOTENCY={"TLL": 1}):
        assert check_cors(None) == []


@pytest.mark.usefixtures("_installed")
def test_the_check_runs_with_djangos_others() -> None:
    """`manage.py check` shows it."""
    assert CANNOT_SEND in run_checks(tags=["security"])


@pytest.mark.usefixtures("_installed")
@pytest.mark.urls("tests.integration.leased_urls")
def test_who_is_told_where_to_look_must_be_able_to_read_it() -> None:
    """A route that answers 202 sends a `Location`."""
    with override_settings(CORS_ALLOW_HEADERS=ALLOWED, CORS_EXPOSE_HEADERS=EXPOSED):
        assert [message.hint for message in check_cors(None)] == [
            "Set CORS_EXPOSE_HEADERS = ['Idempotency-Replayed', 'Retry-After', 'Location']."
        ]
