"""What do the claims of JSON Web Tokens (RFC 7519) say about the caller?

Claims that an authenticator hands on have been verified. The claims of a token that was merely sent may be forged, so
they serve only to tell two requests apart.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import repeat
from time import time
from typing import Any

from ..problems import Refused, token_not_handed_on
from .credentials import ACCESS_TOKEN, access_token, is_credential, sent_credentials
from .parts import NOTHING, HandedOn, Verified, escaped, hashed, sent
from .users import in_a_table, logged_in

SUBJECTS = ("sub", "user_id")
"""Claims that name the subject of a token: the one in RFC 7519, and the one that Simple JWT uses."""
RENEWED = frozenset(
    {
        *("exp", "iat", "nbf", "jti", "auth_time", "nonce", "at_hash", "c_hash", "s_hash"),  # RFC 7519, OpenID Connect
        *("sid", "session_state", "session_id"),  # OpenID Connect, Keycloak
        *("acr", "amr", "updated_at"),  # how the user logged in, and when the profile changed
        *("orig_iat", "origin_jti", "event_id"),  # Django REST framework JWT, Cognito
        *("aio", "rh", "uti", "xms_ftd"),  # Microsoft Entra ID
    }
)
"""Claims that may be different in a renewed token of the same caller. All other claims are part of the scope by which
keys are found, so this set never changes."""
CLAIMS = ".e"
"""How the claims of a JWT begin, including the dot before them: a JSON object in Base64 begins with "e"."""
COOKIE = "HTTP_COOKIE"
SILENT = frozenset({COOKIE, "HTTP_REFERER"})
"""Headers that carry no credential of their own. Cookies are read one by one."""
ADVICE = (
    "%s refused an idempotency key: its user is in no table, and the JWT that was sent isn't handed on, so user 17 of "
    "one issuer would be user 17 of another. Return the token from the authenticator (as request.auth, or as the "
    "user's `token`), or pass scope=callable(request)."
)
RENEWAL = (
    "%s: the JWT in the Authorization header expires before `ttl` is over. Nobody hands it on, so a client that "
    "retries with a renewed token is another caller, and its request runs again. Set request.user before the view, "
    "return the token from the authenticator, or pass scope=callable(request)."
)


def verified(handed: HandedOn) -> Verified:
    """Return the client and issuer named by the authenticator's claims. Without a user, return the account instead."""
    claims = claims_of(handed.token)
    if handed.user is None:
        return NOTHING if claims is None else Verified(account=_account(claims, handed.authenticator))
    stranger = not in_a_table(handed.user)
    if claims is None and stranger:
        claims = claims_of(getattr(handed.user, "token", None))  # such as the token of a `TokenUser`
    if claims is None:
        return NOTHING
    client, issuer = _client(claims), claims.get("iss")
    return Verified(
        client=None if client is None else hashed("client", client),
        issuer=hashed("issuer", str(issuer)) if stranger and issuer else None,
        claims_known=True,
    )


def claimed(request: Any, handed: HandedOn, known: Verified) -> str | None:
    """Return the scope's part for the clients and issuers in unverified tokens, or None if it needs no such part.

    This part also covers all other credentials that were sent.

    Raises:
        Refused: two users could be told apart only by the issuer of an unverified token.
    """
    if handed.user is None:
        return None
    stranger = not (in_a_table(handed.user) or known.claims_known)
    if known.client is not None and not stranger:
        return None
    names: set[tuple[str, str]] = set()
    for place, claims in _sent(request):
        if stranger and is_credential(place) and not logged_in(request, handed.user):
            raise Refused(token_not_handed_on(), ADVICE)
        client, issuer = _client(claims), str(claims.get("iss") or "")
        if client or (stranger and issuer):
            names.add((f"token of {issuer}", client or ""))
    if not names:
        return None
    others = []
    for name, value in sent_credentials(request).items():
        tokens = [*tokens_in(value)]
        if not any(_client(claims) for claims in tokens):  # a renewed token names the same client
            others.append((f"sent {name}", str([*map(_steady, tokens)]) if tokens else value))
    if logged_in(request, handed.user):
        others.append(("session", ""))  # without its cookie, which may contain data that changes
    return sent([*names, *others])


def claims_of(token: Any) -> Mapping[str, Any] | None:
    """Return the claims of a token, or None if it has none.

    The token can be text or bytes with a JWT inside, the claims themselves, or an object with a `payload`.
    """
    if isinstance(token, bytes):
        token = token.decode("latin-1")
    if isinstance(token, str):
        return next(tokens_in(token), None)
    claims = getattr(token, "payload", token)
    return claims if isinstance(claims, Mapping) else None


def tokens_in(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the claims of all JWTs anywhere in a text. Signatures are not checked."""
    if CLAIMS not in text:
        return
    for separator in ',;"':
        text = text.replace(separator, " ")
    for piece in text.split():
        # A JWT consists of a header, the claims and a signature.
        for segment in piece.split(".")[1:-1]:
            if segment.startswith("e") and isinstance(claims := _decoded(segment), Mapping):
                yield claims


def expires_within(request: Any, seconds: float) -> bool:
    """Return whether a JWT in the `Authorization` header expires within the given number of seconds."""
    expiries = (claims.get("exp") for claims in tokens_in(request.META.get("HTTP_AUTHORIZATION", "")))
    return any(isinstance(expiry, (int, float)) and expiry - time() < seconds for expiry in expiries)


def _decoded(segment: str) -> Any:
    try:
        return json.loads(urlsafe_b64decode(segment + "=" * (-len(segment) % 4)))
    except (ValueError, RecursionError):
        return None


def _sent(request: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a pair for each JWT in a request: the place where it was sent, and its claims.

    It isn't known which header or cookie the project's code reads, so all of them count.
    """
    for name, value in request.META.items():
        if isinstance(value, str) and CLAIMS in value and name.startswith("HTTP_") and name not in SILENT:
            yield from zip(repeat(name), tokens_in(value))
    for value in request.COOKIES.values():
        if CLAIMS in value:
            yield from zip(repeat(COOKIE), tokens_in(value))
    if CLAIMS in (token := access_token(request)):
        yield from zip(repeat(ACCESS_TOKEN), tokens_in(token))


def _client(claims: Mapping[str, Any]) -> str | None:
    name = claims.get("client_id") or claims.get("azp")  # RFC 9068, OpenID Connect
    return str(name) if name else None


def _account(claims: Mapping[str, Any], authenticator: str) -> str | None:
    """Return an account made of the claims that stay the same when the token is renewed, or None without a subject.

    A tenant, an organization, an audience or an actor in the claims is part of the account.
    """
    subject = next((str(claims[name]) for name in SUBJECTS if claims.get(name) not in (None, "")), None)
    if subject is None:
        return None
    text = f"{authenticator} {_steady(claims)}"
    return f"jwt:{escaped(subject)}:{sha256(text.encode()).hexdigest()}"


def _steady(claims: Mapping[str, Any]) -> str:
    """Return, as text, the claims that stay the same when a token is renewed. Their order makes no difference."""
    return _text({str(name): value for name, value in claims.items() if name not in RENEWED})


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{','.join(sorted(f'{json.dumps(str(name))}:{_text(item)}' for name, item in value.items()))}}}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return f"[{','.join(sorted(map(_text, value)))}]"  # issuers list a user's roles in any order
    return json.dumps(value, default=str)
