"""tests.packaging.audit: a finding fails. A service without an answer is told, and not taken for a clean result."""

from __future__ import annotations

import json
from typing import Any

from tests.packaging.audit import judged

OURS = {"name": "django-idempotency", "skip_reason": "Dependency not found on PyPI"}
CLEAN = {"name": "sqlparse", "version": "0.5.3", "vulns": []}
WEAK = {"name": "django", "version": "5.2.0", "vulns": [{"id": "PYSEC-2025-37", "fix_versions": ["5.2.1", "4.2.21"]}]}
UNKNOWN = {"name": "asgiref", "skip_reason": "Dependency not found on PyPI"}


def report(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_a_known_vulnerability_is_a_finding() -> None:
    """With the version that mends it, also beside packages that the index does not know."""
    found, told = judged(report(OURS, CLEAN, WEAK, UNKNOWN), "")
    assert found == "django 5.2.0: PYSEC-2025-37, mended in 5.2.1, 4.2.21"
    assert told == "2 packages were looked up. Without an answer: asgiref."


def test_without_a_vulnerability_nothing_is_found() -> None:
    """Our own package need not be on the index."""
    assert judged(report(OURS, CLEAN), "") == (None, "1 packages were looked up. Without an answer: none.")


def test_an_index_without_answers_is_told() -> None:
    """pip-audit itself calls that a success."""
    found, told = judged(report(OURS, UNKNOWN), "")
    assert found is None
    assert told == (
        "NOT RUN: no known vulnerability was looked for, because the index answers about none of the packages."
    )


def test_an_index_that_cannot_be_reached_is_told() -> None:
    """With the last line of pip-audit's error."""
    found, told = judged("", "Traceback:\nConnectionError: no route to the index\n")
    assert found is None
    assert told == "NOT RUN: no known vulnerability was looked for, because ConnectionError: no route to the index."


def test_any_other_failure_of_the_tool_fails() -> None:
    """Otherwise an option that a new version has dropped would switch the look-up off for ever."""
    assert judged("", "pip-audit: error: unrecognized arguments: --path\n")[0] == (
        "pip-audit: pip-audit: error: unrecognized arguments: --path"
    )
    assert judged("", "")[0] == "pip-audit: nothing was said"
