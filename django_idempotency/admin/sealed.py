"""What is encrypted at rest, for the pages of the admin: decrypted for those who may see responses."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.utils.translation import gettext_lazy as _

from ..engine.stores.sealing import Row, is_sealed, unseal
from ..exceptions import NotDecryptable

ENCRYPTED = _("Encrypted. You need the permission “Can view stored response bodies” to see the text.")


def or_why_not(method: Callable[[Any, Any], str]) -> Callable[[Any, Any], str]:
    """Let a method of the admin return the reason if what it shows cannot be decrypted."""

    @wraps(method)
    def shown(model_admin: Any, obj: Any) -> str:
        try:
            return method(model_admin, obj)
        except NotDecryptable as error:
            return str(error)

    return shown


def readable(row: Row, column: str, stored: str | None, step: str = "") -> str | None:
    """Return a stored text decrypted, or the reason why that cannot be done: the rest of the page is still needed."""
    try:
        return unseal(row, column, stored, step)
    except NotDecryptable as error:
        return str(error)


def readable_error(row: Row, column: str, stored: str | None, step: str = "", *, allowed: bool) -> str:
    """Return a stored error. One that is encrypted may quote a request, so it is shown as responses are."""
    if is_sealed(stored) and not allowed:
        return str(ENCRYPTED)
    return readable(row, column, stored, step) or ""
