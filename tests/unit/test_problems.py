"""The texts of error answers that clients read: codes and titles never change, and each answer says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.outcomes import Snapshot
from django_idempotency.engine.request import problems
from django_idempotency.engine.request.problems import Problem

MOVED = Snapshot(status_code=201, headers=(("location", "/orders/59"),), body=None)


@pytest.mark.parametrize(
    ("make", "status", "code", "meaning", "title", "headers"),
    [
        (lambda: problems.missing_key(resolve()), 400, "missing-key", "final", "Idempotency-Key is missing", {}),
        (lambda: problems.invalid_key(resolve(), ""), 400, "invalid-key", "final", "Idempotency-Key is not valid", {}),
        (
            problems.anonymous_refused,
            403,
            "unidentified-caller",
            "log-in",
            "Idempotency-Key needs an identified caller",
            {},
        ),
        (
            problems.credential_refused,
            403,
            "changing-credential",
            "log-in",
            "Idempotency-Key needs an identified caller",
            {},
        ),
        (problems.length_required, 411, "length-required", "final", "The length of the request is not known", {}),
        (problems.body_too_large, 413, "body-too-large", "final", "The request's body is too large", {}),
        (
            lambda: problems.outstanding(resolve()),
            409,
            "in-progress",
            "retry",
            "A request is outstanding for this Idempotency-Key",
            {"Retry-After": "1"},
        ),
        (
            problems.outcome_unknown,
            409,
            "outcome-unknown",
            "retry",
            "The outcome for this Idempotency-Key is unknown",
            {"Retry-After": "60"},
        ),
        (
            lambda: problems.already_used(resolve()),
            422,
            "already-used",
            "look-up",
            "Idempotency-Key is already used",
            {},
        ),
        (problems.key_too_old, 409, "key-too-old", "look-up", "Idempotency-Key is too old", {}),
        (
            lambda: problems.response_not_stored(MOVED),
            409,
            "response-not-stored",
            "look-up",
            "Idempotency-Key is completed, response not stored",
            {"Location": "/orders/59"},
        ),
        (problems.replay_refused, 403, "replay-refused", "look-up", "Replay is not permitted", {}),
        (problems.store_busy, 503, "busy", "retry", "The idempotency store is busy", {"Retry-After": "1"}),
        (problems.paused, 503, "paused", "retry", "This operation is paused", {"Retry-After": "60"}),
    ],
)
def test_codes_meanings_and_titles_never_change(
    make: Callable[[], Problem], status: int, code: str, meaning: str, title: str, headers: dict[str, str]
) -> None:
    """Clients compare them. The detail is a sentence at least."""
    problem = make()
    assert (problem.status, problem.code, problem.title, problem.headers) == (status, code, title, headers)
    assert problem.meaning == meaning
    assert problem.detail.endswith(".")
    assert len(problem.detail.split()) >= 5
