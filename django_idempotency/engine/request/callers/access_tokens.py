"""Which client and which user does a token's database row belong to?

Classes are recognized by their names, so none of the packages needs to be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import ForeignKey, Model

from ....exceptions import IdempotencyConfigurationError
from .parts import NOTHING, HandedOn, Verified, escaped, place_of

KINDS = frozenset({("oauth2_provider.models", "AbstractAccessToken"), ("allauth.idp.oidc.models", "Token")})
"""Models of access tokens. A client may get a new token before a retry, so the row doesn't identify the caller."""
CLIENTS = ("application", "client")
"""A foreign key leads to the token's client if its own name, or the name of its target's model, ends with one of
these."""


def verified(handed: HandedOn) -> Verified:
    """If an authenticator has returned a row as the token, return the client that the row belongs to.

    The row's user is returned as well if the authenticator has returned no user.

    Raises:
        IdempotencyConfigurationError: the access token belongs to neither a client nor a user.
    """
    row = handed.token
    if not isinstance(row, Model) or hasattr(row, "is_authenticated"):
        return NOTHING  # a user's own foreign keys do not identify a token's client
    if handed.user is not None:
        return Verified(client=client_of(row))
    if not is_access_token(row):
        return NOTHING  # the row itself is the caller
    client, owner = client_of(row), _target(row, row._meta.get_field("user"))
    if client is None and owner is None:
        raise IdempotencyConfigurationError(
            f"request.auth is a {row._meta.label} that belongs to no application and no user, and a new token would "
            "be another caller. Pass scope=callable(request)."
        )
    return Verified(account=owner, client=client)


def client_of(row: Model) -> str | None:
    """Return the client that a row has a foreign key to, or None. Runs no query."""
    for field in row._meta.concrete_fields:
        if isinstance(field, ForeignKey):
            names = field.name, field.related_model.__name__.lower()
            if any(name.endswith(CLIENTS) for name in names) and (client := _target(row, field, escaped)) is not None:
                return client
    return None


def belongs_to(row: Model, user: Any) -> bool:
    """Return whether an access token is the user's. Runs no query."""
    field: Any = next((each for each in row._meta.concrete_fields if each.name == "user"), None)
    owner = None if field is None else getattr(row, field.attname)
    return owner == getattr(user, "pk", None)


def is_access_token(row: Any) -> bool:
    """Return whether a row belongs to an OAuth package's access token model, or to a subclass of it."""
    return any((base.__module__, base.__name__) in KINDS for base in row.__class__.__mro__)


def _target(row: Model, field: Any, text: Callable[[str], str] = str) -> str | None:
    """Return a foreign key's name, target model and value in one text, or None if it is empty."""
    value = getattr(row, field.attname)
    return None if value is None else f"{field.name}:{place_of(field.related_model, row)}:{text(str(value))}"
