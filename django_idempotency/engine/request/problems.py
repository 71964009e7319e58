"""Which error responses does the package send? Each function makes one of them, as problem details (RFC 9457).

Titles follow section 2.7 of the IETF draft on `Idempotency-Key`, and are never translated. Details are translated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, assert_never

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.shortcuts import render
from django.template import TemplateDoesNotExist
from django.utils.cache import add_never_cache_headers, patch_vary_headers
from django.utils.encoding import escape_uri_path
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from ...exceptions import NotRun, OperationInProgress, OutcomeUnknown, PayloadMismatch
from ..conf import Idempotency, Options, get_settings, resolve
from ..protocol import outcomes
from ..protocol.key_syntax import KEY_HEADERS
from ..protocol.outcomes import LONGEST_RETRY_AFTER, SHORTEST_RETRY_AFTER, Resource, Snapshot

IN_PROGRESS = "in-progress"
CHANGING = "changing-credential"
JSON = "application/problem+json"
TYPE = "urn:django-idempotency:"
"""The beginning of a problem's `type` if the project has no page about it. With `about:blank`, the title would have to
be the status's own phrase (RFC 9457 section 4.2.1)."""
RETRY_AFTER = str(SHORTEST_RETRY_AFTER)
FORMS = frozenset({"application/x-www-form-urlencoded", "multipart/form-data"})
UNREAD = (RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent, MultiPartParserError, UnreadablePostError)
"""What Django raises for a form that it does not read."""
LONGEST_FORM = 128 * 1024
"""The longest form, in characters, that a page offers to send again. The page's hidden fields can be many times as
long, because `'` becomes `&#x27;`."""
DESCRIBED = frozenset({400, 409, 422})
"""The statuses of responses that link to the project's documentation about its keys."""

UNIDENTIFIED = "Idempotency-Key needs an identified caller"


class Meaning(StrEnum):
    """What an error response means for a client's request and its key."""

    RETRY = "retry"
    """Send the same request again, with the same key."""
    LOG_IN = "log-in"
    """The response says nothing about the request. Keep the key, and send the request again as a known caller."""
    LOOK_UP = "look-up"
    """The request was processed, or may have been. Find out which, and never send it under another key."""
    FINAL = "final"
    """The request was refused, and will not be processed until the client corrects it."""


MEANINGS: Mapping[str, Meaning] = {
    "in-progress": Meaning.RETRY,
    "outcome-unknown": Meaning.RETRY,
    "busy": Meaning.RETRY,
    "paused": Meaning.RETRY,
    "unidentified-caller": Meaning.LOG_IN,
    "changing-credential": Meaning.LOG_IN,
    "response-not-stored": Meaning.LOOK_UP,
    "replay-refused": Meaning.LOOK_UP,
    "key-too-old": Meaning.LOOK_UP,
    "already-used": Meaning.LOOK_UP,
    "missing-key": Meaning.FINAL,
    "invalid-key": Meaning.FINAL,
    "length-required": Meaning.FINAL,
    "body-too-large": Meaning.FINAL,
}
"""The meaning of each code. The documented clients and the page about them repeat this table."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The content of an error response, and the second argument of the callable in the `ERROR_RESPONSE` setting."""

    code: str
    """The error's name for client programs, which is never translated and never changes."""
    status: int
    title: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    resource: Resource | None = None
    """Type and id of the object that the first request referred to, if that request came from the same caller."""
    refused: bool = False
    """With "already-used": whether the first request was refused with a status of 400 or above."""

    @property
    def type(self) -> str:
        """The URI of this kind of error: the project's page about it, or else a URN, which leads nowhere."""
        docs_url = get_settings().docs_url
        return f"{docs_url.partition('#')[0]}#{self.code}" if docs_url else f"{TYPE}{self.code}"

    @property
    def meaning(self) -> Meaning:
        """What a client should do: "retry", "log-in", "look-up" or "final". See the documentation for clients."""
        return MEANINGS[self.code]


class Refused(Exception):
    """The caller cannot be identified, or the body cannot be used. No key has been claimed yet."""

    def __init__(self, problem: Problem, advice: str = "") -> None:
        super().__init__(problem.code)
        self.problem = problem
        self.advice = advice
        """A message for the log that says what the project can do; "%s" stands for the operation."""


def missing_key(options: Options, request: HttpRequest | None = None) -> Problem:
    """Return the error for a request without a key, mentioning a header with a similar name if there is one."""
    if options.key is None:
        detail = _("This operation needs the request header %(header)s with a unique value, such as a UUID.")
        detail %= {"header": get_settings().header}
        # Truncated, because the client chooses the name.
        similar = [name[:60] for name in (request.headers if request else ()) if "idempot" in name.lower()]
        if similar:
            text = _("The request carries the header %(similar)s instead.")
            detail = f"{detail} {text % {'similar': similar[0]}}"
    elif (source := getattr(options.key, "source", None)) is not None:
        # A `KeyReader` names the part of the request that must contain the key.
        detail = _("This operation needs %(source)s, with a unique value.") % {"source": source}
    else:
        detail = _("This operation needs an idempotency key.")
    return Problem("missing-key", 400, "Idempotency-Key is missing", detail)


def invalid_key(options: Options, reason: str) -> Problem:
    if options.key is None:
        detail = _("The request header %(header)s does not carry a usable key.") % {"header": get_settings().header}
    else:
        detail = _("The request does not carry a usable key.")
    if reason:  # for an empty string, gettext() would return the header of the translation file
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
    return Problem(CHANGING, 403, UNIDENTIFIED, detail)


def token_not_handed_on() -> Problem:
    detail = _("This operation cannot tell which issuer your token comes from, so it cannot recognize you.")
    return Problem("unidentified-caller", 403, UNIDENTIFIED, detail)


def length_required() -> Problem:
    detail = _("The request's body came in chunks, without its length. Send the request with a Content-Length.")
    return Problem("length-required", 411, "The length of the request is not known", detail)


def body_too_large() -> Problem:
    detail = _("The request's body is too large for this operation to compare it with a retry's. Send a smaller one.")
    return Problem("body-too-large", 413, "The request's body is too large", detail)


def outstanding(options: Options, retry_after: int = SHORTEST_RETRY_AFTER) -> Problem:
    """Return the error for a duplicate of a request that has not ended; `retry_after` is in seconds."""
    title = "A request is outstanding for this Idempotency-Key"
    detail = _("The first request with this key is still being processed. Retry it later, unchanged.")
    return Problem(IN_PROGRESS, options.in_progress_status, title, detail, {"Retry-After": str(retry_after)})


def outcome_unknown(unkeyed: Iterable[str] = ()) -> Problem:
    """Return the error for a key whose outcome is unknown.

    If `DEBUG` is True, the error also explains how to repeat the calls in `unkeyed`.
    """
    title = "The outcome for this Idempotency-Key is unknown"
    detail = _(
        "The first request with this key was interrupted. It is not known yet whether it took effect. Send the same "
        "request again later, with the same key."
    )
    if settings.DEBUG:
        detail = " ".join([detail, *(_(outcomes.UNKEYED) % {"step": step} for step in unkeyed)])
    return Problem("outcome-unknown", 409, title, detail, {"Retry-After": str(LONGEST_RETRY_AFTER)})


def already_used(options: Options) -> Problem:
    # Don't say "use a new key". The first request may have charged the customer, and this one may be the same order
    # with a correction.
    detail = _(
        "This key was used for another request, which may have been processed. Find out what became of it first. A new "
        "request needs a key of its own."
    )
    return Problem("already-used", options.mismatch_status, "Idempotency-Key is already used", detail)


def key_too_old() -> Problem:
    detail = _(
        "The key is not known, and it is too old to be new: its request may have been processed already. "
        "Find out what became of that request, then use a new key."
    )
    return Problem("key-too-old", 409, "Idempotency-Key is too old", detail)


def response_not_stored(snapshot: Snapshot, resource: Resource | None = None) -> Problem:
    title, location = "Idempotency-Key is completed, response not stored", snapshot.header("Location")
    detail = _("The request was processed with status %(status)s and is not run again.")
    headers = {} if location is None else {"Location": location}
    return Problem("response-not-stored", 409, title, detail % {"status": snapshot.status_code}, headers, resource)


def replay_refused() -> Problem:
    detail = _("The request was processed, but you may not see its response. Do not send it again under a new key.")
    return Problem("replay-refused", 403, "Replay is not permitted", detail)


def store_busy() -> Problem:
    detail = _("Nothing was done. Retry the request later, unchanged.")
    return Problem("busy", 503, "The idempotency store is busy", detail, {"Retry-After": RETRY_AFTER})


def paused() -> Problem:
    detail = _("Nothing was done. Retry the request later, unchanged.")
    return Problem("paused", 503, "This operation is paused", detail, {"Retry-After": str(LONGEST_RETRY_AFTER)})


def problem_of(refusal: outcomes.Refusal | outcomes.Withheld | NotRun, options: Options) -> Problem:
    """Return the error for a refusal, or for an exception that `run_once` has raised."""
    match refusal:
        case outcomes.Mismatched() | PayloadMismatch():
            problem = already_used(options)
        case outcomes.Conflicted() | OperationInProgress():
            problem = outstanding(options, refusal.retry_after)
        case outcomes.InDoubt() | OutcomeUnknown():
            problem = outcome_unknown(getattr(refusal, "unkeyed", ()))
        case outcomes.Unavailable() | NotRun():
            problem = store_busy()
        case outcomes.TooOld():
            problem = key_too_old()
        case outcomes.Withheld():
            problem = replay_refused()
        case _:
            assert_never(refusal)
    refused = getattr(refusal, "refused", False)
    return replace(problem, resource=getattr(refusal, "resource", None), refused=refused)


def problem_response(request: HttpRequest, error: NotRun) -> HttpResponse:
    """Return the error response that a protected view would give for an exception raised by `run_once`.

    Its status is 409 or 422, or 503 if the store was busy; `Retry-After` is set if a retry can succeed.

    Args:
        request: Django's or the REST framework's request.
        error: the exception that `run_once` has raised.

    Returns:
        The response, in the format of the `ERROR_RESPONSE` setting if the project has one.
    """
    # Never return 202 for a request that is still running: a webhook sender would mistake it for success.
    response: HttpResponse = respond(request, problem_of(error, resolve(Idempotency(in_progress_status=409))))
    response.headers[get_settings().replayed_header] = "false"
    return response


def respond(request: Any, problem: Problem) -> Any:
    """Return the response for a problem, in the project's own format if it has one.

    Args:
        request: Django's or the REST framework's request.
    """
    conf = get_settings()
    response = (conf.error_response or problem_details)(request, problem)
    for name, value in problem.headers.items():
        response.setdefault(name, value)
    if conf.docs_url and problem.status in DESCRIBED:
        response.setdefault("Link", f'<{conf.docs_url}>; rel="describedby"; type="text/html"')
    return response


def problem_details(request: Any, problem: Problem) -> HttpResponse:
    """Return HTML for browsers, and JSON for programs."""
    django_request: HttpRequest = getattr(request, "_request", request)
    response = _page(django_request, problem) or _json(django_request, problem)
    patch_vary_headers(response, ["Accept"])
    return response


def _page(request: HttpRequest, problem: Problem) -> HttpResponse | None:
    """Return a page for a browser, a fragment for htmx, or None for programs and for projects without Django templates.

    A button on the page sends the form again with the same key. The page doesn't reload itself: a reload would be a
    GET, which returns an empty form with a new key, and a customer who filled it in would order the same goods twice.
    """
    by_htmx = request.headers.get("HX-Request") == "true"  # htmx 2 accepts any type, and would show JSON to the shopper
    if not by_htmx and request.get_preferred_type([JSON, "application/json", "text/html"]) != "text/html":
        return None
    whole = not by_htmx or "HX-Boosted" in request.headers or request.headers.get("HX-Request-Type") == "full"
    template = "problem.html" if whole else "problem_fragment.html"
    again = _again(request)
    htmx = None if whole or again is None else {"url": request.get_full_path(), "headers": _again_headers(request)}
    context = {"problem": problem, "again": again, "htmx": htmx, "form_url": _form_url(request)}
    try:
        page = render(request, f"django_idempotency/{template}", context)
    except TemplateDoesNotExist:
        return None
    page.status_code = problem.status
    add_never_cache_headers(page)
    return page


def _again(request: HttpRequest) -> list[tuple[str, str]] | None:
    """Return the fields that a page needs in order to resend this form, or None if the form cannot be resent."""
    try:
        if request.method != "POST":
            return None  # a form can only send POST, which would be a different request
        if request.META.get("CONTENT_TYPE", "").partition(";")[0] not in FORMS or request.FILES:
            return None
        fields = [(name, value) for name, values in request.POST.lists() for value in values]
        return fields if sum(len(name) + len(value) for name, value in fields) <= LONGEST_FORM else None
    except UNREAD:
        return None


def _form_url(request: HttpRequest) -> str | None:
    """Return the URL of the page with the form, if it belongs to this site. Reloading that page generates a new key."""
    referer = request.headers.get("Referer")
    return referer if url_has_allowed_host_and_scheme(referer, {request.get_host()}, request.is_secure()) else None


def _again_headers(request: HttpRequest) -> str:
    """Return the value of `hx-headers`: the request headers to repeat when the form is sent again."""
    names = (get_settings().header, "X-CSRFToken", *sorted(KEY_HEADERS))
    return json.dumps({name: request.headers[name] for name in names if name in request.headers})


def _json(request: HttpRequest, problem: Problem) -> HttpResponse:
    body: dict[str, Any] = {
        "type": problem.type,
        "code": problem.code,
        "meaning": problem.meaning,
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "instance": escape_uri_path(request.path),
    }
    if problem.resource is not None:
        body["resource"] = dict(zip(("type", "id"), problem.resource, strict=True))
    return HttpResponse(json.dumps(body), status=problem.status, content_type=JSON)
