"""Each error response of the package, and what the clients' tables say about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_idempotency import Idempotency
    from django_idempotency.engine.request.problems import Problem


def every_problem(options: Idempotency) -> list[Problem]:
    """Each problem that the server can answer with, under these options."""
    from django_idempotency.engine.protocol.outcomes import Snapshot
    from django_idempotency.engine.request import problems

    return [
        problems.missing_key(options),
        problems.invalid_key(options, "…"),
        problems.anonymous_refused(),
        problems.credential_refused(),
        problems.replay_refused(),
        problems.outstanding(options),
        problems.outcome_unknown(),
        problems.key_too_old(),
        problems.response_not_stored(Snapshot(status_code=201, headers=(), body=None)),
        problems.length_required(),
        problems.body_too_large(),
        problems.already_used(options),
        problems.store_busy(),
        problems.paused(),
    ]


def answers_by_code() -> dict[str, str]:
    """The meaning of each problem that the server can answer with, by status and code."""
    from django_idempotency import Idempotency
    from django_idempotency.engine.conf import resolve
    from django_idempotency.engine.request.problems import MEANINGS

    found = {(409, "in-progress"), (429, "in-progress")}  # 429: of a server of 0.4.0, or by its own ERROR_RESPONSE
    for mismatch in (422, 409):
        options = resolve(Idempotency(mismatch_status=mismatch))
        found |= {(problem.status, problem.code) for problem in every_problem(options)}
    order = [*MEANINGS]
    ordered = sorted(found, key=lambda answer: (order.index(answer[1]), answer[0]))
    return {f"{status} {code}": str(MEANINGS[code]) for status, code in ordered}


def codes(indent: str) -> str:
    """The rows of a client's table."""
    return "".join(f'{indent}"{answer}": "{meaning}",\n' for answer, meaning in answers_by_code().items())
