"""The reference says what the code says: made of it, or compared with it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from django_idempotency.engine.conf.modes import mode_of
from django_idempotency.engine.conf.options import NOT_FINAL, OPTION_NAMES, defaults
from django_idempotency.engine.conf.settings import SETTING_NAMES, Settings
from tests.acceptance.reference import DOCS, pages, updated, whom


@pytest.mark.parametrize("page", pages())
def test_what_is_made_of_the_code_is_up_to_date(page: str) -> None:
    """If not: python -m tests.acceptance.reference."""
    for module in (
        "boto3",
        "drf_spectacular",
        "ninja",
        "opentelemetry",
        "prometheus_client",
        "rest_framework",
        "strawberry",
    ):
        pytest.importorskip(module)

    assert (DOCS / page).read_text() == updated(page, pages()[page])


def test_each_option_and_setting_says_whom_it_serves() -> None:
    """In one line. What serves nobody goes."""
    known = {*OPTION_NAMES, *SETTING_NAMES} - {name.upper() for name in OPTION_NAMES}
    said = whom()
    assert said.keys() == known
    assert {name for name, text in said.items() if not re.fullmatch(r"(?:[a-z]|API|RDS)[^.]{4,100}\.", text)} == set()


def test_every_setting_is_described():
    """One row for each setting that is no option in upper case."""
    _, text = (DOCS / "options.md").read_text().split("## The `IDEMPOTENCY` setting")
    rows = re.findall(r"(?m)^\| `([A-Z_]+)` \|", text)

    assert sorted(rows) == sorted(set(SETTING_NAMES) - {name.upper() for name in OPTION_NAMES})


IN_WORDS = {
    "scope": "the caller",
    "operation": "method and route",
    "key": "the header",
    "record": f"below 500, not {', '.join(map(str, sorted(NOT_FINAL)))}",
    "ttl": "24 hours; 35 days with `lease`",
    "using": "the write alias",
}


def test_the_defaults_are_those_of_the_code() -> None:
    """Those that are functions or decided later are described in words."""
    rows = dict(re.findall(r"(?m)^\| `(\w+)` \| (.*?) \|", (DOCS / "options.md").read_text()))
    expected = {name: IN_WORDS.get(name) or shown(value) for name, value in defaults(mode_of(None, None)).items()}
    expected |= {name: shown(getattr(Settings(), name.lower())) for name in rows if name.isupper()}

    assert rows == expected


def test_each_table_of_statuses_is_that_of_the_code() -> None:
    """Which responses are final, and which of the others a client may simply repeat."""
    choices = (DOCS / "choices.md").read_text()
    released = " ".join(re.findall(r"(?m)^\| (.*?) \| no \|", choices))
    assert {int(status) for status in re.findall(r"\d+", released)} == NOT_FINAL
    (row,) = re.findall(r"(?m)^\| (.*), each 5xx \| retry \|$", (DOCS / "clients.md").read_text())
    clients = [
        re.findall(r"RETRIED = [^\d\n]*([\d, ]+)", (DOCS / name).read_text()) for name in ("client.py", "client.js")
    ]
    assert clients == [[row], [row]]
    assert {int(status) for status in row.split(", ")} < NOT_FINAL


def shown(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds() / 3600:g} hours"
    if value == 1024 * 1024:
        return "1 MiB"
    if type(value) is int:
        return str(value)
    return "`" + repr(value).replace("'", '"') + "`"


def test_every_system_check_is_described() -> None:
    """Each id in checks.py has an item, and the other way round; what is E is an Error, what is W a Warning."""
    package = DOCS.parent / "django_idempotency"
    places = [package / "checks.py", *package.glob("engine/stores/*_checks.py"), *package.glob("backends/*.py")]
    source = "".join(path.read_text() for path in places)
    raised = re.findall(
        r'(Error|Warning)\((?:(?!Error\(|Warning\().)*?id="(django_idempotency\.\w+)"', source, re.DOTALL
    )

    assert set(re.findall(r'"(django_idempotency\.[EW]\d+)"', source)) == set(
        re.findall(r"(?m)^\* `(django_idempotency\.\S+)`", (DOCS / "commands.md").read_text())
    )
    assert {(kind[0], id_.split(".")[1][0]) for kind, id_ in raised} == {("E", "E"), ("W", "W")}
