"""From a response to its stored form, and back."""

from __future__ import annotations

from http.client import responses

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from ..conf import Idempotency, get_settings
from ..protocol.snapshots import Headers, Snapshot

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110 section 7.6.1: headers about one connection, not about the response."""
CREDENTIALS = frozenset({"set-cookie", "authorization"})
"""Headers that a view may have set itself and that no table should hold: a session, a freshly issued token."""
NEVER_KEPT = HOP_BY_HOP | CREDENTIALS
REASON = ":reason"
"""The view's own reason phrase is kept among the headers, under a name that no header can have."""


def capture(response: HttpResponseBase, options: Idempotency) -> Snapshot:
    """The stored form of a final response, rendered or streaming.

    A response that is too large, or that streams, leaves its `Location`. With `store_body=False` nothing but the status
    is kept: an address may carry a secret as well, such as an OAuth code or a link to reset a password.
    """
    if not options.store_body:
        return Snapshot(status_code=response.status_code, headers=(), body=None)
    body = None if response.streaming else bytes(response.content)  # type: ignore[attr-defined]
    if body is None or len(body) > options.max_body_bytes:
        location = response.headers.get("Location")
        headers: Headers = () if location is None else (("Location", location),)
        return Snapshot(status_code=response.status_code, headers=headers, body=None)
    return Snapshot(status_code=response.status_code, headers=_headers(response), body=body)


def restore(snapshot: Snapshot) -> HttpResponse:
    """The stored response, byte for byte."""
    response = HttpResponse(snapshot.body, status=snapshot.status_code)
    del response.headers["Content-Type"]  # Django's default; the view's own is among the headers
    for name, value in snapshot.headers:
        if name == REASON:
            response.reason_phrase = value
        elif name == "Set-Cookie":
            response.cookies.load(value)
        else:
            response.headers[name] = value
    if 300 <= snapshot.status_code < 400 and "Location" in response.headers:
        # As Django's own redirects have it. Django's test client asks for it.
        vars(response)["url"] = response.headers["Location"]
    return response


def _headers(response: HttpResponseBase) -> Headers:
    store_cookies = get_settings().store_cookies
    dropped = NEVER_KEPT - {"set-cookie"} if store_cookies else NEVER_KEPT
    if (named := response.headers.get("Connection")) is not None:
        dropped = dropped.union(name.strip() for name in named.lower().split(","))
    kept = []
    for name, value in response.headers.items():
        if name.lower() not in dropped:
            kept.append((name, value))
    if response.reason_phrase != responses.get(response.status_code, "Unknown Status Code"):
        kept.append((REASON, response.reason_phrase))
    if store_cookies:
        kept += [("Set-Cookie", morsel.OutputString()) for morsel in response.cookies.values()]
    return tuple(kept)
