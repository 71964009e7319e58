"""The endpoints as text: a table for people, JSON for programs, Markdown to publish."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from django.contrib.admindocs.utils import (
    remove_non_capturing_groups,
    replace_metacharacters,
    replace_named_groups,
    replace_unnamed_groups,
)
from django.utils.translation import gettext as _

from ..engine.conf import Idempotency, settings
from . import specification
from .listing import Endpoint

Allowed = Callable[[Endpoint], bool]


def as_table(endpoints: Sequence[Endpoint], allowed: Allowed) -> str:
    """One line for each endpoint, and a line that counts."""
    lines = [
        (
            *(_("method"), _("route"), _("view"), _("protected"), _("mode"), _("kept for"), _("scope"), _("key")),
            _("note"),
        ),
        *(_cells(endpoint, allowed(endpoint)) for endpoint in endpoints),
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    counts = {
        "protected": sum(endpoint.protected for endpoint in endpoints),
        "unprotected": sum(not endpoint.protected for endpoint in endpoints),
        "allowed": sum(not endpoint.protected and allowed(endpoint) for endpoint in endpoints),
    }
    return "\n".join(
        [*table, "", _("%(protected)d protected, %(unprotected)d not, of which %(allowed)d are allowed.") % counts]
    )


def _cells(endpoint: Endpoint, allowed: bool) -> tuple[str, ...]:
    options = endpoint.options
    first = (endpoint.method, endpoint.route, endpoint.view)
    if options is None:
        return *first, _("no, allowed") if allowed else _("no"), "", "", "", "", endpoint.note
    required = _("required") if options.required else _("optional")
    rest = (endpoint.mode, specification.lifetime(options), specification.scope(options), required, endpoint.note)
    return *first, _("yes"), *rest


def as_json(endpoints: Sequence[Endpoint], allowed: Allowed) -> str:
    """A list of objects. Names and values are not translated, `note` is."""
    return json.dumps([_object(endpoint, allowed(endpoint)) for endpoint in endpoints], indent=2)


def _object(endpoint: Endpoint, allowed: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "method": endpoint.method,
        "route": endpoint.route,
        "name": endpoint.name,
        "view": endpoint.view,
        "protected": endpoint.protected,
        "note": endpoint.note,
    }
    if (options := endpoint.options) is None:
        return {**found, "allowed": allowed}
    return {
        **found,
        "mode": endpoint.mode,
        "lease_seconds": options.lease_seconds,
        "ttl_seconds": options.ttl_seconds,
        "required": options.required,
        "header": settings().header if options.key is None else None,
        "key": None if options.key is None else specification.key_source(options.key),
        "scope": _callable(options.scope),
        "anonymous": options.anonymous,
        "operation": _operation(endpoint, options),
        "wait_seconds": options.wait_seconds,
        "in_progress_status": options.in_progress_status,
        "mismatch_status": options.mismatch_status,
    }


def _callable(value: Any) -> str | None:
    return None if value is None else specification.callable_name(value)


def _operation(endpoint: Endpoint, options: Idempotency) -> str:
    return options.operation or f"{endpoint.method} {endpoint.route}"


def as_markdown(endpoints: Sequence[Endpoint], allowed: Allowed) -> str:
    """The specification that sections 2.2, 2.3 and 2.5.2 of the draft want published, for clients.

    Unprotected endpoints that are allowed are left out.
    """
    protected = [_section(endpoint, options) for endpoint in endpoints if (options := endpoint.options) is not None]
    left = [endpoint for endpoint in endpoints if not endpoint.protected and not allowed(endpoint)]
    parts = [_introduction(), *protected]
    if left:
        lines = [f"- `{endpoint.method} {path(endpoint.route)}`" for endpoint in left]
        parts += [f"## {_('Not protected')}\n\n{_('These take no notice of a key: a retry may run again.')}\n", *lines]
    return "\n".join(parts)


def _introduction() -> str:
    conf = settings()
    says = {"header": f"`{conf.header}`", "replayed": f"`{conf.replayed_header}`"}
    paragraphs = [
        f"# {_('Idempotency keys')}",
        _(
            "Make up a key for each operation, send it in the request header %(header)s, and send the same key with "
            "every retry of that operation, which must be the same request."
        )
        % says,
        _(
            "%(replayed)s in an answer says whether it is the kept answer of an earlier request (`true`) or first-hand "
            "(`false`). Without that header no key was honoured."
        )
        % says,
    ]
    if conf.docs_url:
        paragraphs.append(_("See also: %(url)s") % {"url": f"<{conf.docs_url}>"})
    return "\n\n".join(paragraphs) + "\n"


def _section(endpoint: Endpoint, options: Idempotency) -> str:
    required = _("required") if options.required else _("optional; without it the request is not protected")
    expiry = _("%(time)s from the first request. After that the key is as if it had never been used.")
    facts = {
        **({_("Header"): f"`{settings().header}`, {required}"} if options.key is None else {}),
        _("Key"): specification.key_format(options),
        _("Unique for"): f"{specification.uniqueness(options)}; {_('operation')} `{_operation(endpoint, options)}`",
        _("Compared with the first request"): specification.comparison(options),
        _("Kept for"): expiry % {"time": specification.lifetime(options)},
        **({_("Note"): endpoint.note} if endpoint.note else {}),
    }
    lines = [f"- {name}: {text}" for name, text in facts.items()]
    lines += [
        f"- {answer.status} “{answer.title}”: {answer.meaning}" + (" `Retry-After`." if answer.retry_after else "")
        for answer in specification.answers(options)
    ]
    return f"## {endpoint.method} {path(endpoint.route)}\n\n" + "\n".join(lines) + "\n"


def path(route: str) -> str:
    """The route as a client reads it: `^orders/(?P<pk>[^/.]+)/$` is `/orders/<pk>/`."""
    for simplify in (remove_non_capturing_groups, replace_named_groups, replace_unnamed_groups, replace_metacharacters):
        route = simplify(route)
    return "/" + re.sub(r"\\(.)", r"\1", route).removeprefix("/")
