"""`problem_response`: the answer of a protected view, for an exception of `run_once`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_idempotency import (
    NotRun,
    OperationInProgress,
    OutcomeUnknown,
    PayloadMismatch,
    StoreBusy,
    problem_response,
)


def in_progress() -> OperationInProgress:
    error = OperationInProgress("…")
    error.retry_after = 7
    return error


@pytest.mark.parametrize("conf", [{}, {"IN_PROGRESS_STATUS": 202, "LEASE": 60}])
@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (in_progress(), 409, "in-progress", "7"),
        (OutcomeUnknown("…"), 409, "outcome-unknown", "60"),
        (PayloadMismatch("…"), 422, "already-used", None),
        (StoreBusy("…"), 503, "busy", "1"),
    ],
)
def test_each_exception_has_the_answer_of_a_protected_view(
    rf: Any, settings: Any, conf: dict[str, Any], error: NotRun, status: int, code: str, retry_after: str | None
) -> None:
    """Never 202: a sender of webhooks would take that for success, and would not deliver again."""
    settings.IDEMPOTENCY = conf
    response = problem_response(rf.post("/hook"), error)
    assert (response.status_code, response.headers.get("Retry-After")) == (status, retry_after)
    assert (json.loads(response.content)["code"], response.headers["Idempotency-Replayed"]) == (code, "false")
    assert response.headers["Content-Type"] == "application/problem+json"
