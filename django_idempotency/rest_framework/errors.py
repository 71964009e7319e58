"""How do refusals take the format of the project's `EXCEPTION_HANDLER`?"""

from __future__ import annotations

from typing import Any

from django.db import connections
from rest_framework.exceptions import APIException

from ..engine.request.problems import Problem, problem_details


class RequestRefused(APIException):
    """What the project's `EXCEPTION_HANDLER` gets for a request that a protected view has refused.

    Attributes:
        status_code: the status of the response.
        detail: the text, with the error's `code`.
        problem: what `ERROR_RESPONSE` gets: `code`, `meaning`, `title`, `headers`, `resource`, `refused`.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail, problem.code)
        self.status_code = problem.status
        self.problem = problem


def error_response(request: Any, problem: Problem) -> Any:
    """Return the response of the project's `EXCEPTION_HANDLER`: a value for the `ERROR_RESPONSE` setting.

    A REST framework view then refuses a request in the format of its other errors. Other views, and views whose handler
    returns None, respond with `application/problem+json`.

    Args:
        request: Django's or the REST framework's request.
        problem: the refusal.
    """
    view = getattr(request, "parser_context", {}).get("view")
    if view is None:
        return problem_details(request, problem)
    # The handler calls `set_rollback()`, although nothing has been written that could be rolled back. In a TestCase,
    # that call would block the test's own queries.
    before = {each: each.needs_rollback for each in connections.all(initialized_only=True) if each.in_atomic_block}
    try:
        return _handled(view, RequestRefused(problem))
    except RequestRefused:
        return problem_details(request, problem)
    finally:
        for connection, marked in before.items():
            connection.set_rollback(marked)


def _handled(view: Any, refused: RequestRefused) -> Any:
    try:
        raise refused  # handlers report and log `sys.exc_info()`
    except RequestRefused:
        return view.handle_exception(refused)
