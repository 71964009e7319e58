"""The scope that 0.4.0 gave to callers, and whether they are still the same callers: the table in docs/upgrading.md."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from tests.callers.identity_urls import NINJA_INSTALLED, OPAQUE
from tests.settings import REST_FRAMEWORK_INSTALLED

USER, STRANGER = "user:auth.User:{ada}", "user:tests.callers.identity_urls.Stateless:17"
OPAQUE_TOKEN = f"{OPAQUE}17-A-1"


def hashed(kind: str, text: str) -> str:
    return f"{kind}:{sha256(text.encode()).hexdigest()}"


def returned(token: str) -> str:
    """The text that an authenticator returned."""
    return hashed("auth", f"tests.callers.identity_urls.Jwt\n{token}")


def returned_in_ninja(token: str) -> str:
    """The same, of a class whose metaclass is ABCMeta, and which is made by calling `type`."""
    return hashed("auth", f"abc.Jwt\n{token}")


def with_client(token: str) -> str:
    return f"for:{USER}+{hashed('client', 'A')}"


Case = tuple[str, dict[str, Any] | None, Callable[[str], str]]
"""A path, the claims of the JWT (None: an opaque token), and the scope that 0.4.0 gave to it."""
KEPT: dict[str, Case] = {
    "a user": ("/plain/row", {}, lambda token: USER),
    "a token in a header": ("/plain/bare", {"azp": "A"}, lambda token: hashed("authorization", f"bearer {token}")),
}
CHANGED: dict[str, Case] = {"a client whose token isn't handed on": ("/plain/row", {"azp": "A"}, with_client)}
if REST_FRAMEWORK_INSTALLED:
    issued = {"sub": "17", "iss": "shops"}
    KEPT |= {
        "a client whose token is handed on": ("/rest/text", {"azp": "A"}, with_client),
        "a user in no table": (
            "/rest/stranger-claims",
            issued,
            lambda token: f"for:{STRANGER}+{hashed('issuer', 'shops')}",
        ),
        "a text without a user": ("/rest/alone-text", None, returned),
    }
    CHANGED |= {
        "a JWT without a user": ("/rest/alone-text", issued, returned),
        "a user in no table who carries the token": ("/rest/stranger-token", issued, lambda token: STRANGER),
        "a user in no table whose token is bytes": ("/rest/stranger-bytes", issued, lambda token: STRANGER),
    }
if NINJA_INSTALLED:
    CHANGED["a user who is set beside the token, in Ninja"] = ("/ninja/sets", {}, returned_in_ninja)
