"""Which key did the client send with a request?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from ...exceptions import IdempotencyConfigurationError
from ..conf import Options, get_settings, meta_name
from ..protocol.key_syntax import MAX_AHEAD, InvalidKey, check_dated, check_key, is_late, is_uuid, parse_header
from ..protocol.outcomes import ClaimRequest


def read_key(request: Any, options: Options) -> str | None:
    """Return the key that the client sent, or None. Runs no SQL.

    Raises:
        InvalidKey: what the client sent is not a key.
        IdempotencyConfigurationError: the project's `key=` returned neither a str nor None.
    """
    conf = get_settings()
    key: str | None
    if options.key is None:
        field = request.META.get(meta_name(conf.header))
        key = None if field is None else parse_header(field)
    elif (key := options.key(request)) is not None:
        if not isinstance(key, str):
            raise IdempotencyConfigurationError(f"key={options.key!r} returned {key!r}; return a str or None.")
        check_key(key)
    if key is None:
        return None
    if conf.key_validator is not None:
        try:
            valid = conf.key_validator(key)
        except ValidationError as error:
            raise InvalidKey(" ".join(error.messages)) from error
        # Django's own validators return None for a valid value, and raise an exception for an invalid one.
        if valid is False:
            raise InvalidKey(_("It does not have the format that this server requires."))
        if conf.key_validator is is_uuid:
            # A client may write a UUID in one case, and get it back from its database or library in the other.
            key = key.lower()
    return check_dated(key) if options.late_keys == "refuse" else key


def refusing_late(claim_request: ClaimRequest) -> ClaimRequest:
    """Return a copy of the claim for `late_keys="refuse"`: a key older than `ttl` is refused if it has no row.

    The key's timestamp comes from the client's clock, which may be a few minutes ahead. The key may therefore be
    accepted until a few minutes after `ttl`. If its row expired before then, a retry would run the view again.
    """
    return replace(
        claim_request,
        ttl=claim_request.ttl + MAX_AHEAD,
        late=partial(is_late, claim_request.identity.key, claim_request.ttl),
    )
