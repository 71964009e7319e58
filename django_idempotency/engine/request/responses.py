"""Which parts of a response are stored, how is it replayed, and what do a 202 response and its status page say?"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime
from hashlib import sha256
from http.client import responses
from http.cookies import CookieError, Morsel, SimpleCookie
from struct import pack, unpack
from typing import Any

from django.conf import settings
from django.core.files import File
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import NoReverseMatch, reverse
from django.utils.cache import add_never_cache_headers
from django.utils.crypto import constant_time_compare, salted_hmac
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyKey
from ..conf import Options, get_settings
from ..protocol.digests import Identity
from ..protocol.outcomes import Headers, Snapshot
from ..stores.journal import steps_of
from ..stores.states import EXPIRED, Clock, Seen
from .problems import IN_PROGRESS, RETRY_AFTER

NEVER_KEPT = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
        *("set-cookie", "authorization"),
    }
)
"""Headers that are not stored: most apply to one connection rather than to the response (RFC 9110 section 7.6.1), and
the last two can contain a session or a new token, which must not end up in a table."""
REASON = ":reason"
"""A reason phrase that the view has set is stored under this header name, which no real header has."""
FLAGS = frozenset({"httponly", "partitioned", "secure"})
"""The attributes of a cookie that have no value."""
SALT = "django_idempotency.status"
PROOF, CLAIM = 16, 24
"""The lengths in bytes of the two parts of a status page's token: 128 bits of a signature, and the hashes and time of a
claim."""
FILES = frozenset({"_io", "tempfile"})
"""The modules of Python's own files and buffers. Reading from these does none of the view's work."""
ABANDONED = "abandoned"
"""The status page's word for a key in progress whose worker has died. A retry takes over the key, or a person
decides."""


def works_later(response: HttpResponseBase) -> bool:
    """Return whether a streaming body may do part of the view's work while it is sent, after the key is completed.

    Generators and lazily made files may do so; a `FileResponse` of a real file, a buffer or Django's `File` does not.
    """
    file = getattr(response, "file_to_stream", None)
    return not (isinstance(file, File) or type(file).__module__ in FILES)


def refuse_stream(response: HttpResponseBase, options: Options) -> None:
    """Raise `IdempotencyConfigurationError` if the body does work that no retry would repeat."""
    if options.store_body and response.streaming and works_later(response):
        raise IdempotencyConfigurationError(
            f"The view returned {response!r}, whose body is made after its key is completed. If the client hangs up or "
            "the body fails, the rest of its work is lost, and a retry doesn't repeat it. Do the work in the view and "
            "return an HttpResponse. If the body only reads, pass store_body=False: a retry then gets 409."
        )


def capture(response: HttpResponseBase, options: Options) -> Snapshot:
    """Return the parts of a final response that can be stored; the response must be rendered or streaming.

    For a file, or a response that is too large, only the status and `Location` are stored. With
    `store_body=False`, only the status is stored, because even `Location` can contain a secret, such as an OAuth code
    or a password reset link.
    """
    # A view may set the status to an enumeration member. Without `int`, PostgreSQL would get the member's name.
    status = int(response.status_code)
    body: bytes | None = None
    if options.store_body and not response.streaming:
        body = response.content  # type: ignore[attr-defined]
    if body is not None and len(body) <= options.max_body_bytes:
        return Snapshot(status_code=status, headers=_headers(response), body=body)
    location = response.headers.get("Location") if options.store_body else None
    headers: Headers = () if location is None else (("Location", location),)
    return Snapshot(status_code=status, headers=headers, body=None)


def _headers(response: HttpResponseBase) -> Headers:
    store_cookies = get_settings().store_cookies
    dropped = NEVER_KEPT - {"set-cookie"} if store_cookies else NEVER_KEPT
    headers, connection = [], ""
    for name, value in response.headers.items():
        if (lower := name.lower()) not in dropped:
            headers.append((name, value))
        elif lower == "connection":
            connection = value.lower()
    if connection:  # `Connection` names other connection-specific headers
        named = {name.strip() for name in connection.split(",")}
        headers = [(name, value) for name, value in headers if name.lower() not in named]
    if response.reason_phrase != responses.get(response.status_code, "Unknown Status Code"):
        headers.append((REASON, response.reason_phrase))
    if store_cookies:
        headers += [("Set-Cookie", morsel.OutputString()) for morsel in response.cookies.values()]
    return tuple(headers)


def restore(snapshot: Snapshot) -> HttpResponse:
    """Return a response with the same bytes as the stored one."""
    headers = dict(snapshot.headers)
    headers.pop("Set-Cookie", None)
    reason = headers.pop(REASON, None)
    response = HttpResponse(snapshot.body, status=snapshot.status_code, reason=reason, headers=headers)
    if len(response.headers) > len(headers):
        del response.headers["Content-Type"]  # the stored response had none; Django has added this one
    for name, value in snapshot.headers:
        if name == "Set-Cookie":
            try:
                cookie = _cookie(value)
            except CookieError:  # the view has set this header directly, without `set_cookie`
                response.headers[name] = value
            else:
                response.cookies[cookie.key] = cookie
    if 300 <= snapshot.status_code < 400 and "Location" in response.headers:
        # Django's redirects have a `url` attribute, which Django's test client reads.
        vars(response)["url"] = response.headers["Location"]
    return response


def _cookie(stored: str) -> Morsel[str]:
    """Return the cookie in a `Set-Cookie` header. `SimpleCookie.load` cannot read a path that contains a space."""
    pair, *attributes = map(str.strip, stored.split(";"))
    name, _, coded = pair.partition("=")
    cookie: Morsel[str] = Morsel()
    cookie.set(name, SimpleCookie().value_decode(coded)[0], coded)
    for attribute in attributes:
        label, _, value = attribute.partition("=")
        if (label := label.lower()) in cookie:
            cookie[label] = label in FLAGS or value
    return cookie


# --- a 202 response


def accepted(alias: str, identity: Identity) -> HttpResponse:
    """Return the 202 response for a duplicate, with the running request's state and a link to its status page.

    The page returns 404 once the key's row is gone; the client should then send its request again.
    """
    hashes = identity.key_hash, identity.scope_hash
    state = _state(alias, *hashes) or {"status": IdempotencyKey.Status.IN_PROGRESS.value}
    # A view can also return 202 itself. `code` tells the client that this response comes from the package.
    response = JsonResponse({"code": IN_PROGRESS, **state}, status=202)
    response.headers["Location"] = status_url(alias, *hashes, state.get("created_at"))
    response.headers["Retry-After"] = RETRY_AFTER
    return response


def status_url(alias: str, key_hash: int, scope_hash: int, created_at: datetime | None) -> str:
    """Return the path of a key's status page.

    Args:
        created_at: when the row was claimed, or None if there is no row, in which case the page will return 404.

    Raises:
        IdempotencyConfigurationError: the project's routes do not include the page.
    """
    claim = pack(">qq", key_hash, scope_hash) + stamp(created_at)
    try:
        return reverse("django_idempotency:status", args=[_token(settings.SECRET_KEY, alias, claim)])
    except NoReverseMatch as error:
        raise IdempotencyConfigurationError(
            "the status page of a key (in_progress_status=202) has no URL. Include it in the "
            'urlpatterns of the project: path("idempotency/", include("django_idempotency.urls")).'
        ) from error


def stamp(created_at: datetime | None) -> bytes:
    """Return 8 bytes derived from a claim's time, so that a status page's URL is valid for only one claim."""
    return sha256(str(created_at).encode()).digest()[:8]


def _token(secret: str | bytes, alias: str, claim: bytes) -> str:
    """Return a string that proves the claim without revealing it to anyone who does not know the secret.

    A claim's hashes are made without a secret: anyone who knew them could find short keys and user ids by trial and
    error. The construction follows RFC 5297, in which the proof also serves as the nonce for the encryption. No cipher
    package is needed, because one HMAC is long enough to mask 24 bytes.
    """
    proof = salted_hmac(f"{SALT}.proof", alias.encode() + claim, secret, algorithm="sha256").digest()[:PROOF]
    return urlsafe_b64encode(proof + _masked(secret, proof, claim) + alias.encode()).decode().rstrip("=")


def _masked(secret: str | bytes, proof: bytes, claim: bytes) -> bytes:
    mask = salted_hmac(f"{SALT}.mask", proof, secret, algorithm="sha256").digest()
    return bytes(a ^ b for a, b in zip(claim, mask, strict=False))


def _claimed(token: str) -> tuple[str, bytes] | None:
    """Return the alias and the claim from a token created by this project, or None for any other token."""
    try:
        raw = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        proof, masked, alias = raw[:PROOF], raw[PROOF : PROOF + CLAIM], raw[PROOF + CLAIM :].decode()
    except ValueError:
        return None
    for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        claim = _masked(secret, proof, masked)
        if constant_time_compare(_token(secret, alias, claim), token):
            return alias, claim
    return None


@require_safe
def status(request: HttpRequest, token: str) -> HttpResponse:
    """Return the state of one request as JSON, without its response and without other callers' data."""
    state, claimed_at = None, b""
    if (claimed := _claimed(token)) is not None:
        alias, claim = claimed
        state, claimed_at = _state(alias, *unpack(">qq", claim[:16])), claim[16:]
    if state is None or stamp(state["created_at"]) != claimed_at:
        response = JsonResponse({"detail": _("There is no such request.")}, status=404)
    else:
        response = JsonResponse(state)
        if state["status"] == IdempotencyKey.Status.IN_PROGRESS:
            response.headers["Retry-After"] = RETRY_AFTER
    # Even a 404 must not be cached, because the key's row can appear a moment later.
    add_never_cache_headers(response)
    return response


def _state(alias: str, key_hash: int, scope_hash: int) -> dict[str, Any] | None:
    rows = IdempotencyKey.objects.using(alias).filter(key_hash=key_hash, scope_hash=scope_hash)
    row = rows.exclude(EXPIRED.condition).annotate(now=Clock()).defer("headers", "body").first()
    if row is None:
        return None
    steps = steps_of(alias, row).exclude(finished_at=None).order_by("pk")
    return {
        "status": ABANDONED if Seen(row, row.now).abandoned else row.status,
        "attempt": row.attempt,
        "steps": list(steps.values_list("name", flat=True)),
        "created_at": row.created_at,
        "completed_at": row.completed_at,
        "expires_at": row.expires_at,
    }
