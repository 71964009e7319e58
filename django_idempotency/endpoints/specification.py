"""The words of the published specification: what a client has to know of one protected endpoint.

Sections 2.2, 2.3 and 2.5.2 of the draft want published: whether a key is required, its format, what makes it unique,
how requests are compared, and the expiry. The Markdown of `idempotency_endpoints` and OpenAPI say it in these words.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..engine.conf import Idempotency, settings
from ..engine.protocol.key_syntax import is_uuid
from ..engine.protocol.snapshots import Snapshot
from ..engine.request import problems
from ..engine.request.key import KeyReader

_QUOTED = r'"(?:[!#-\[\]-~]|\\["\\]){1,255}"'
_BARE = r"[!#-'*+\-.-9<->A-~](?:[!#-'*+\-.-:<-~]){0,254}"
_UUID = "-".join(rf"[0-9a-fA-F]{{{length}}}" for length in (8, 4, 4, 4, 12))
_NOT_STORED = Snapshot(status_code=200, headers=(), body=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that a client of the endpoint may get instead of the view's: a problem, unless it is 202."""

    status: int
    title: str
    meaning: str
    retry_after: bool


def key_pattern() -> str:
    """What the header may hold, as a regular expression that JSON Schema takes."""
    conf = settings()
    if conf.key_validator is is_uuid:
        return rf'^"{_UUID}"$' if conf.require_quoted_key else rf'^({_UUID}|"{_UUID}")$'
    return f"^{_QUOTED}$" if conf.require_quoted_key else f"^({_QUOTED}|{_BARE})$"


def key_format(options: Idempotency) -> str:
    """The same in words, or what reads the key instead of the header."""
    if options.key is not None:
        return key_source(options.key)
    conf = settings()
    if conf.key_validator is is_uuid:
        text = _("A UUID")
    else:
        text = _("1 to 255 visible ASCII characters, unique for each operation, such as a UUID")
    if conf.require_quoted_key:
        text = _('%(key)s, in double quotes (a string of RFC 9651): "8e03978e-40d5-43dd-bc93-6894a57f9324".') % {
            "key": text
        }
    else:
        text = _(
            '%(key)s. In double quotes (a string of RFC 9651), or bare if it holds none of " , ; ( ) and does not '
            "begin with : ? or @."
        ) % {"key": text}
    if conf.key_validator not in (None, is_uuid):
        text = f"{text} {_('The server demands a form of its own beyond that.')}"
    return text


def key_source(key: Any) -> str:
    """What a callable of the `key` option reads."""
    return (
        str(key.source) if isinstance(key, KeyReader) else _("read by %(callable)s") % {"callable": callable_name(key)}
    )


def lifetime(options: Idempotency) -> str:
    """The expiry in the largest unit that fits without a rest: "24 hours" is "1 day"."""
    seconds = options.ttl_seconds
    if seconds % 86400 == 0:
        return ngettext("%(count)d day", "%(count)d days", int(seconds // 86400)) % {"count": seconds // 86400}
    if seconds % 3600 == 0:
        return ngettext("%(count)d hour", "%(count)d hours", int(seconds // 3600)) % {"count": seconds // 3600}
    if seconds % 60 == 0:
        return ngettext("%(count)d minute", "%(count)d minutes", int(seconds // 60)) % {"count": seconds // 60}
    return ngettext("%(count)g second", "%(count)g seconds", ceil(seconds)) % {"count": seconds}


def scope(options: Idempotency) -> str:
    """Who is meant by "the same caller"."""
    if options.scope is not None:
        return callable_name(options.scope)
    return _("caller, anonymous refused") if options.anonymous == "refuse" else _("caller")


def uniqueness(options: Idempotency) -> str:
    """Within what a key is unique (C4): the scope, in the words of a client."""
    if options.scope is not None:
        return _("the caller, as %(callable)s tells") % {"callable": callable_name(options.scope)}
    if options.anonymous == "refuse":
        return _("the authenticated user, else the credential or session that was sent; others are refused")
    return _("the authenticated user, else the credential or session that was sent, else all anonymous callers")


def comparison(options: Idempotency) -> str:
    """How a retry is compared with the first request (C9)."""
    if options.fingerprint is None:
        return _("not at all")
    if options.fingerprint == "request":
        return _("method, path with query, content type and body")
    if isinstance(options.fingerprint, tuple):
        return _("the body fields %(names)s") % {"names": ", ".join(options.fingerprint)}
    return _("by %(callable)s") % {"callable": callable_name(options.fingerprint)}


def answers(options: Idempotency) -> list[Answer]:
    """The package's own answers on this endpoint, by status."""
    given = [
        *([problems.missing_key(options)] if options.required else []),
        problems.invalid_key(options, ""),
        *([problems.anonymous_refused()] if options.scope is None and options.anonymous == "refuse" else []),
        *([problems.replay_refused()] if options.may_replay is not None else []),
        *([problems.outstanding(options)] if options.in_progress_status != 202 else []),
        *([problems.outcome_unknown()] if options.lease is not None and options.on_abandoned == "hold" else []),
        problems.already_used(options),
    ]
    found = [_answer(problem, problem.detail.strip()) for problem in given]
    # The detail would name a status, which is another for each response.
    not_stored = _("The request was processed, and its response is not kept. It is not run again.")
    found.append(_answer(problems.response_not_stored(_NOT_STORED), not_stored))
    if options.in_progress_status == 202:
        still = _("The first request with this key is still being processed. Location is the page of its state.")
        found.append(Answer(status=202, title="Accepted", meaning=still, retry_after=True))
    return sorted(found, key=lambda answer: answer.status)


def callable_name(function: Any) -> str:
    """The dotted name of a callable of the project's."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _answer(problem: problems.Problem, meaning: str) -> Answer:
    return Answer(
        status=problem.status, title=problem.title, meaning=meaning, retry_after="Retry-After" in problem.headers
    )
