"""Which credentials did the client send? Nobody has verified them, so all of them together identify the caller."""

from __future__ import annotations

from base64 import b64decode
from contextlib import suppress
from functools import lru_cache
from typing import Any

from django.core.exceptions import TooManyFieldsSent

from ...conf import get_settings, meta_name
from ..problems import Refused, credential_refused

SCHEMES = frozenset(
    {
        *("access-token", "api-key", "api-token", "apikey", "apitoken", "basic", "bearer", "jwt", "key"),
        *("private-token", "ssws", "token", "x-api-key"),
    }
)
"""Authorization schemes, in lower case, whose value stays the same in a retry. With others, such as Digest, DPoP and
HMAC signatures, the value changes, and the retry would seem to come from another caller."""
PUBLISHABLE = ("pk_live_", "pk_test_", "sb_publishable_")
"""How the publishable keys of Stripe, Clerk and Supabase begin. Every visitor's browser sends the shop's key."""
PLACEHOLDERS = frozenset({"", "null", "undefined", "none", "og=="})
"""What clients send when they have no credential, in lower case. `Og==` is an empty name and password in Basic
authentication."""
ADVICE = (
    "%s refused an idempotency key: the value of its Authorization scheme may change with each request, so it "
    "does not identify a caller who retries. Set request.user before the view or pass scope=callable(request)."
)
ACCESS_TOKEN = "access_token"  # nosec B105  # noqa: S105 (a name)
"""How RFC 6750 names a token in a form or in the query."""


def sent_credentials(request: Any, *, refuse: bool = False) -> dict[str, str]:
    """Return the credentials that were sent, by name. Placeholders are left out.

    Args:
        refuse: whether to refuse an `Authorization` header whose value may change, instead of ignoring it.

    Raises:
        Refused: the scheme of the `Authorization` header is not on the list.
    """
    sent: dict[str, str] = {}
    meta = request.META
    for place, name in _places(get_settings().credential_headers):
        if not (value := meta.get(place, "").strip()):
            continue
        if name == "authorization":
            value = _authorization(value, refuse=refuse)
        if value.lower() not in PLACEHOLDERS:
            sent[name] = value
    if (token := access_token(request)).lower() not in PLACEHOLDERS:
        sent[f"?{ACCESS_TOKEN}"] = token  # no header has such a name
    return sent


def access_token(request: Any) -> str:
    """Return the token in the query, or in a form that has been read, as RFC 6750 allows; empty if there is none."""
    django_request = getattr(request, "_request", request)
    # If the form has not been read yet, no token in it can have authenticated the caller.
    form = getattr(django_request, "_post", None)
    # Parsing the query is slow even if it is empty: it takes as long as reading all other credentials.
    if not (form or django_request.META.get("QUERY_STRING") or "GET" in vars(django_request)):
        return ""
    try:
        sent = django_request.GET.getlist(ACCESS_TOKEN)
    except TooManyFieldsSent:
        return ""
    return "\n".join([*sent, *(form.getlist(ACCESS_TOKEN) if form else ())])


def is_credential(place: str) -> bool:
    """Return whether projects look for credentials in this place: a header, by its name in `META`, or a parameter."""
    headers = ("Authorization", *get_settings().credential_headers)
    return place == ACCESS_TOKEN or place in map(meta_name, headers)


def identifies(value: str) -> bool:
    """Return whether a credential distinguishes its sender from others.

    Every visitor's browser sends the shop's publishable key, which identifies the shop but not the visitor.
    """
    return not _secret(value).startswith(PUBLISHABLE)


@lru_cache(maxsize=64)
def _places(headers: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return each header's name in `META`, and its name in lower case."""
    return tuple((meta_name(header), header.lower()) for header in headers)


def _authorization(value: str, *, refuse: bool) -> str:
    """Return an `Authorization` header's value with its scheme in lower case; empty if it holds no credential."""
    first, *rest = value.split(maxsplit=1)
    scheme = first.lower()
    if not rest:
        return "" if scheme in SCHEMES else first  # a token without a scheme
    if scheme not in SCHEMES:
        if refuse:
            raise Refused(credential_refused(), ADVICE)
        return ""
    return "" if rest[0].lower() in PLACEHOLDERS else f"{scheme} {rest[0]}"


def _secret(value: str) -> str:
    """Return a header's credential without its scheme. In Basic authentication, an API key is the user name."""
    scheme, _, secret = value.rpartition(" ")
    if scheme == "basic":
        with suppress(ValueError):
            return b64decode(secret).decode(errors="replace")
    return secret
