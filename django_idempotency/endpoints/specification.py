"""The words of the published specification: what a client must know of one protected endpoint.

Sections 2.2, 2.3 and 2.5.2 of the draft name the contents: whether a key is required, its format, what makes it unique,
how requests are compared, and the expiry. The Markdown of `idempotency_endpoints` and OpenAPI use these words, in
English.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from django.utils.translation import override

from ..engine.conf import Fingerprint, Idempotency, get_settings
from ..engine.declare.callables import dotted_name
from ..engine.protocol.key_syntax import is_uuid
from ..engine.protocol.outcomes import Snapshot
from ..engine.request import problems
from ..engine.request.problems import Problem

_QUOTED = r'"(?:[!#-\[\]-~]|\\["\\]){1,255}"'
_BARE = r"[!#-'*+\-.-9<->A-~](?:[!#-'*+\-.-:<-~]){0,254}"
_UUID = "-".join(rf"[0-9a-fA-F]{{{length}}}" for length in (8, 4, 4, 4, 12))
_BODY = "body (JSON and forms up to 128 KiB by their values)"
_UNITS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}


def key_pattern() -> str:
    """The format of the header as a regular expression that JSON Schema accepts."""
    conf = get_settings()
    if conf.key_validator is is_uuid:
        return rf'^"{_UUID}"$' if conf.require_quoted_key else rf'^({_UUID}|"{_UUID}")$'
    return f"^{_QUOTED}$" if conf.require_quoted_key else f"^({_QUOTED}|{_BARE})$"


def key_format(options: Idempotency) -> str:
    """The format in words. If the header does not carry the key, the place of the key."""
    if options.key is not None:
        return key_source(options.key)
    conf = get_settings()
    text = "1 to 255 visible ASCII characters, unique for each operation, such as a UUID"
    if conf.key_validator is is_uuid:
        text = "A UUID"
    if conf.require_quoted_key:
        text += ', in double quotes (a string of RFC 9651): "8e03978e-40d5-43dd-bc93-6894a57f9324".'
    else:
        text += (
            '. In double quotes (a string of RFC 9651), or bare if it holds none of " , ; ( ) and does not begin with '
            ": ? or @."
        )
    if conf.key_validator not in (None, is_uuid):
        text += " The server demands a form of its own beyond that."
    return text


def key_source(key: Any) -> str:
    """The place that a callable of the `key` option reads."""
    with override(None):
        return str(getattr(key, "source", f"read by {dotted_name(key)}"))


def lifetime(options: Idempotency) -> str:
    """The expiry in the largest unit without a fraction: 24 hours are "1 day"."""
    seconds = options.ttl_seconds
    unit = next((unit for unit, length in _UNITS.items() if seconds % length == 0), "second")
    count = seconds / _UNITS[unit]
    return f"{count:.10g} {unit}{'' if count == 1 else 's'}"


def uniqueness(options: Idempotency) -> str:
    """Within what a key is unique (C4): the scope, in the words of a client."""
    if options.scope is not None:
        return f"the caller, as {dotted_name(options.scope)} tells"
    others = "; others are refused" if options.anonymous == "refuse" else ", else all anonymous callers"
    return f"the authenticated user, else the credential or session that was sent{others}"


def comparison(options: Idempotency) -> str:
    """How a retry is compared with the first request (C9)."""
    chosen = options.fingerprint
    if chosen is None:
        return "not at all"
    if callable(chosen):
        return f"method, path, query string and what {dotted_name(chosen)} returns"
    if isinstance(chosen, tuple):
        return f"method, path, query string and the body fields {', '.join(chosen)}"
    chosen = chosen if isinstance(chosen, Fingerprint) else Fingerprint()
    address = "method, path, query string" if chosen.query else "method, path"
    body = _BODY if chosen.fields is None else f"the body fields {', '.join(chosen.fields)}"
    left_out = f", without {', '.join(chosen.exclude)}" if chosen.exclude else ""
    return f"{address}, content type and {body}{left_out}"


def documented_responses(options: Idempotency) -> list[Problem]:
    """The package's own responses on this endpoint, by status: what a client may get in place of the view's."""
    with override(None):
        found = [replace(problem, detail=problem.detail.strip()) for problem in _problems(options)]
    return sorted(found, key=lambda problem: problem.status)


def _problems(options: Idempotency) -> Iterator[Problem]:
    if options.required:
        yield problems.missing_key(options)
    yield problems.invalid_key(options, "")
    if options.scope is None and options.anonymous == "refuse":
        yield problems.anonymous_refused()
    if options.may_replay is not None:
        yield problems.replay_refused()
    if options.in_progress_status == 202:
        still = "The first request with this key is still being processed. Location is the page of its state."
        yield replace(problems.outstanding(options), title="Accepted", detail=still)
    else:
        yield problems.outstanding(options)
    if options.lease is not None and options.on_abandoned == "hold":
        yield problems.outcome_unknown()
    yield problems.already_used(options)
    # The problem's own detail would name a status, which differs from response to response.
    not_stored = "The request was processed, and its response is not kept. It is not run again."
    kept = Snapshot(status_code=200, headers=(), body=None)
    yield replace(problems.response_not_stored(kept), detail=not_stored)
    yield problems.store_busy()
