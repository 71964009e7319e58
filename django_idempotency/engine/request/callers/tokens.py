"""Who is the caller if an authenticator returns a text or an object, but no user?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....exceptions import IdempotencyConfigurationError
from . import jwts
from .parts import HandedOn, Verified, hashed
from .users import scope_of_user


def verified(handed: HandedOn) -> Verified:
    """Return the account for a text or a model instance.

    Raises:
        IdempotencyConfigurationError: the object does not identify the caller, so all callers would share one scope.
    """
    token = handed.token.decode("latin-1") if isinstance(handed.token, bytes) else handed.token
    if isinstance(token, str) and token:
        named = f"{handed.authenticator}\n{token}" if handed.authenticator else token
        return Verified(account=hashed("auth", named))
    if getattr(token, "pk", None) is None:
        raise IdempotencyConfigurationError(
            f"request.auth is of type {type(token).__qualname__!r}, which does not tell who is calling. Return a "
            "user, a model instance or the token from the authenticator, or pass scope=callable(request)."
        )
    account = scope_of_user(token)
    # Some primary keys are secrets, such as those of Django REST framework's `Token` and Django's `Session`.
    return Verified(account=hashed("auth", account) if isinstance(token.pk, str) else account)


def is_text(token: Any) -> bool:
    """Return whether a token is a text or claims. Two authenticators may return equal tokens for different callers."""
    return isinstance(token, (str, bytes)) or jwts.claims_of(token) is not None


def name_among(authenticators: Sequence[Any], name_of: Callable[[Any], str], which: Any) -> str:
    """Return the name of one of the authenticators, with its number if others have the same name.

    Instances of one class, or closures of one function, are configured differently, and may return the same string for
    different callers. Only the order of the authenticators tells them apart, so the scopes change if a deployment
    changes the order.
    """
    name = name_of(which)
    namesakes = [one is which for one in authenticators if name_of(one) == name]
    return name if len(namesakes) < 2 else f"{name}#{namesakes.index(True) + 1}"
