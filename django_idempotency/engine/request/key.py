"""Reading the idempotency key of a request. No SQL statement runs here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, get_settings, meta_name
from ..protocol.key_syntax import InvalidKey, check_dated, check_key, parse_header


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReader:
    """A value for the `key` option that knows the name of its place. A plain callable works too.

    Attributes:
        read: `callable(request) -> str | None`; may raise `InvalidKey`.
        source: the name of the place. It ends the sentence "This operation needs …" of the error answer.
    """

    read: Callable[[Any], str | None]
    source: str | Promise

    def __call__(self, request: Any) -> str | None:
        return self.read(request)


def read_key(request: Any, options: Idempotency) -> str | None:
    """The key that the client sent, or None.

    Raises:
        InvalidKey: the client sent something that is not a key.
        IdempotencyConfigurationError: the project's `key=` returned something else than a str or None.
    """
    conf = get_settings()
    if options.key is not None:
        value = options.key(request)
        if value is not None and not isinstance(value, str):
            raise IdempotencyConfigurationError(f"key={options.key!r} returned {value!r}; return a str or None.")
        key = None if value is None else check_key(value)
    else:
        field = request.META.get(meta_name(conf.header))
        key = None if field is None else parse_header(field, require_quoted=conf.require_quoted_key)
    if key is not None and conf.key_validator is not None:
        _validate(key, conf.key_validator)
    if key is not None and options.late_keys == "refuse":
        check_dated(key)
    return key


def _validate(key: str, validator: Callable[[str], Any]) -> None:
    try:
        valid = validator(key)
    except ValidationError as error:
        raise InvalidKey(" ".join(error.messages)) from error
    # Django's own validators return None for a valid value, and raise for another one.
    if valid is False:
        raise InvalidKey(_("It does not have the form that this server demands."))
