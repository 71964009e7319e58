"""What makes up a scope? A scope has verified parts, and parts that a client merely sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from django.db import DEFAULT_DB_ALIAS, router

from ...protocol.digests import MAX_READABLE_SCOPE, digest

LONGEST_ACCOUNT = 120
"""In characters. This leaves 130 characters of a readable scope for the parts that are added to the account."""
SAFE = ":/.@"
"""The characters that are not escaped, besides letters, digits and `_.-~`. None of them separates parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOn:
    """The results of a request's authentication. The sources of identity read them.

    Attributes:
        user: the authenticated user, or None.
        token: what an authenticator returned beside the user, or instead of one.
        authenticator: the authenticator's name, if another one may return the same text for a different caller.
    """

    user: Any = None
    token: Any = None
    authenticator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What has been established about a caller. It may be equal for requests that carry different credentials.

    Attributes:
        account: a user, a token's subject or owner, or a model instance.
        client: the client that acts for the account, or for itself.
        issuer: the issuer of a token, for an account without a row in the database.
        claims_known: whether an authenticator has returned the claims of a token. If so, it is known whether the token
            names an issuer.
    """

    account: str | None = None
    client: str | None = None
    issuer: str | None = None
    claims_known: bool = False

    def beside(self, other: Verified) -> Verified:
        """Return both combined. Where both have a value, the value of `self` is used."""
        if other is NOTHING:
            return self
        return Verified(
            account=self.account or other.account,
            client=self.client or other.client,
            issuer=self.issuer or other.issuer,
            claims_known=self.claims_known or other.claims_known,
        )


NOBODY, NOTHING = HandedOn(), Verified()


def scope_text(verified: Verified, claimed: str | None) -> str:
    """Return the scope made of these parts. An account or a client must have been verified.

    # Note [The text of a scope]
    Keys are found by their scopes, so this text never changes. A caller is an account such as `user:auth.User:7`, or a
    client such as `application:shop.Client:5`. The account comes first, followed by the parts that tell its callers
    apart, as in `for:user:auth.User:7+application:shop.Client:5`. The account and each part are escaped, so a "+" is
    always a separator. An account that is too long is hashed. All scopes of an account therefore begin alike, and no
    other scope begins that way. Data that was merely sent is combined into a single part, `sent:` followed by a
    hash. This part never equals a verified one.
    """
    account = verified.account or str(verified.client)
    client = verified.client if verified.account else None
    added = "+".join(filter(None, (client, verified.issuer, claimed)))
    if not added:
        return account
    prefix = acting_for(account)
    # A scope that is too long would be stored as one hash, without the account's prefix.
    return prefix + (added if len(prefix + added) <= MAX_READABLE_SCOPE else hashed("parts", added))


def acting_for(account: str) -> str:
    """Return the prefix shared by the scopes of all clients that act for this account, and by no other scopes.

    The `scope` column has an index, which makes a query by prefix fast.
    """
    return f"for:{escaped(account)}+"


def escaped(text: str) -> str:
    """Return the text without the characters that separate parts, or its hash if it is too long."""
    quoted = quote(text, safe=SAFE, errors="surrogatepass")
    return quoted if len(quoted) <= LONGEST_ACCOUNT else sha256(text.encode(errors="surrogatepass")).hexdigest()


def hashed(kind: str, value: str) -> str:
    """Return a part that contains the hash of a secret or long value. All callers with that value share the part."""
    return f"{kind}:{sha256(value.encode(errors='surrogatepass')).hexdigest()}"


def sent(values: Iterable[tuple[str, str]]) -> str:
    """Return the one part for everything that a client merely sent."""
    return f"sent:{digest('sent 1', ascii(sorted(values))).hex()}"


def place_of(model: Any, row: Any) -> str:
    """Return the label of a row's model, prefixed with the database alias if that is not the default.

    Users in different databases can have the same primary key.
    """
    # A proxy model shares the rows of its concrete model, so an account must have the same scope in both.
    label: str = model._meta.concrete_model._meta.label
    # The write alias is used, because a request and its retry may read from different replicas.
    alias = router.db_for_write(model, instance=row)
    return label if alias == DEFAULT_DB_ALIAS else f"{alias}/{label}"
