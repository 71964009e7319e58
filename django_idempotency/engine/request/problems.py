"""Every error answer of the package, as RFC 9457 problem details: one factory per error.

Titles are those of the draft (section 2.7) and are never translated. Details are translated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from django.http import HttpRequest, HttpResponse
from django.utils.encoding import escape_uri_path
from django.utils.translation import gettext as _

from ..conf import Idempotency, get_settings
from ..protocol import outcomes
from ..protocol.outcomes import LONGEST_RETRY_AFTER, SHORTEST_RETRY_AFTER, Snapshot

IN_PROGRESS = "in-progress"
RETRY_AFTER = str(SHORTEST_RETRY_AFTER)
UNKNOWN_RETRY_AFTER = str(LONGEST_RETRY_AFTER)
"""A person has to find out first."""
DESCRIBED = frozenset({400, 409, 422})
"""Statuses whose answers link to the project's documentation of its keys."""

UNIDENTIFIED = "Idempotency-Key needs an identified caller"


@dataclass(frozen=True, slots=True)
class Problem:
    """An error before it becomes a response: the second argument of the `ERROR_RESPONSE` setting."""

    code: str
    """Stable and never translated. Clients branch on it."""
    status: int
    title: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)


def missing_key(options: Idempotency, request: HttpRequest | None = None) -> Problem:
    """`request`: where to look for a header with a similar name, which the client may have sent by mistake."""
    if options.key is None:
        detail = _("This operation needs the request header %(header)s with a unique value, such as a UUID.")
        detail %= {"header": get_settings().header}
        # Cut to a length that fits into a sentence.
        similar = [name[:60] for name in (request.headers if request else ()) if "idempot" in name.lower()]
        if similar:
            text = _("The header %(similar)s was sent, which has another name.")
            detail = f"{detail} {text % {'similar': similar[0]}}"
    elif (source := getattr(options.key, "source", None)) is not None:  # a `KeyReader` tells the name of its place
        detail = _("This operation needs %(source)s, with a unique value.") % {"source": source}
    else:
        detail = _("This operation needs an idempotency key.")
    return Problem("missing-key", 400, "Idempotency-Key is missing", detail)


def invalid_key(options: Idempotency, reason: str) -> Problem:
    if options.key is None:
        detail = _("The request header %(header)s does not carry a usable key.") % {"header": get_settings().header}
    else:
        detail = _("The request does not carry a usable key.")
    if reason:  # gettext("") would return the header of the catalogue
        detail = f"{detail} {_(reason)}"
    return Problem("invalid-key", 400, "Idempotency-Key is not valid", detail)


def anonymous_refused() -> Problem:
    detail = _("Only callers who can be told apart may use idempotency keys here. Send your credentials.")
    return Problem("unidentified-caller", 403, UNIDENTIFIED, detail)


def credential_refused() -> Problem:
    detail = _(
        "The value of your Authorization header may change with each request, so this operation cannot recognize a "
        "retry by it."
    )
    return Problem("changing-credential", 403, UNIDENTIFIED, detail)


def length_required() -> Problem:
    detail = _("The request's body came in chunks, without its length. Send the request with a Content-Length.")
    return Problem("length-required", 411, "The length of the request is not known", detail)


def body_too_large() -> Problem:
    detail = _("The request's body is larger than this operation can compare with that of a retry. Send less.")
    return Problem("body-too-large", 413, "The request's body is too large", detail)


def outstanding(options: Idempotency, retry_after: int = SHORTEST_RETRY_AFTER) -> Problem:
    """`retry_after`: seconds, see `Conflicted.retry_after`."""
    title = "A request is outstanding for this Idempotency-Key"
    detail = _("The first request with this key is still being processed. Retry it later, unchanged.")
    return Problem(IN_PROGRESS, options.in_progress_status, title, detail, {"Retry-After": str(retry_after)})


def outcome_unknown() -> Problem:
    title = "The outcome for this Idempotency-Key is unknown"
    detail = _(
        "The first request with this key was interrupted, and it is not known yet whether it took effect. "
        "It needs attention and is not run again. Retry it later, unchanged."
    )
    return Problem("outcome-unknown", 409, title, detail, {"Retry-After": UNKNOWN_RETRY_AFTER})


def already_used(options: Idempotency) -> Problem:
    detail = _("This key was used for another request. Use a new key for a new request.")
    return Problem("already-used", options.mismatch_status, "Idempotency-Key is already used", detail)


def key_too_old() -> Problem:
    detail = _(
        "The key is not known, and it is too old to be new: its request may have been processed already. "
        "Find out what became of that request, then use a new key."
    )
    return Problem("key-too-old", 409, "Idempotency-Key is too old", detail)


def response_not_stored(snapshot: Snapshot) -> Problem:
    title, location = "Idempotency-Key is completed, response not stored", snapshot.header("Location")
    detail = _("The request was processed with status %(status)s and is not run again.")
    headers = {} if location is None else {"Location": location}
    return Problem("response-not-stored", 409, title, detail % {"status": snapshot.status_code}, headers)


def replay_refused() -> Problem:
    detail = _("You may not see the response that is stored for this key.")
    return Problem("replay-refused", 403, "Replay is not permitted", detail)


def store_busy() -> Problem:
    detail = _("Nothing was done. Retry the request later, unchanged.")
    return Problem("busy", 503, "The idempotency store is busy", detail, {"Retry-After": RETRY_AFTER})


def problem_of(refusal: outcomes.Refusal, options: Idempotency) -> Problem:
    """The error answer to a request whose claim was refused."""
    match refusal:
        case outcomes.Mismatched():
            return already_used(options)
        case outcomes.Conflicted():
            return outstanding(options, refusal.retry_after)
        case outcomes.InDoubt():
            return outcome_unknown()
        case outcomes.Unavailable():
            return store_busy()
        case outcomes.TooOld():
            return key_too_old()
        case _:
            assert_never(refusal)


def respond(request: HttpRequest, problem: Problem) -> Any:
    """The problem in the project's own format, if it has one, else as application/problem+json."""
    conf = get_settings()
    if conf.error_response is not None:
        response = conf.error_response(request, problem)
    else:
        body = {
            "type": f"{conf.docs_url.partition('#')[0]}#{problem.code}" if conf.docs_url else "about:blank",
            "code": problem.code,
            "title": problem.title,
            "status": problem.status,
            "detail": problem.detail,
            "instance": escape_uri_path(request.path),
        }
        response = HttpResponse(json.dumps(body), status=problem.status, content_type="application/problem+json")
    for name, value in problem.headers.items():
        response.setdefault(name, value)
    if conf.docs_url and problem.status in DESCRIBED:
        response.setdefault("Link", f'<{conf.docs_url}>; rel="describedby"; type="text/html"')
    return response
