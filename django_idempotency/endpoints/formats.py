"""The list of endpoints as a table for developers, or as Markdown for the project's clients; always in English."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from django.contrib.admindocs.views import simplify_regex

from ..engine.conf import Options, get_settings
from ..engine.declare.wrappers import dotted_name
from . import specification
from .listing import Endpoint

Allowed = Callable[[Endpoint], bool]
HEADINGS = ("method", "route", "view", "protected", "mode", "kept for", "scope", "key", "note")
"""The first row of the table."""


def as_table(endpoints: Sequence[Endpoint], allowed: Allowed) -> str:
    """Return a table with one row for each endpoint, followed by a line with the totals."""
    lines = [HEADINGS, *(_cells(endpoint, allowed(endpoint)) for endpoint in endpoints)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    left = [endpoint for endpoint in endpoints if not endpoint.protected]
    counts = f"{len(endpoints) - len(left)} protected, {len(left)} not, of which {sum(map(allowed, left))} are allowed."
    return "\n".join([*table, "", counts])


def _cells(endpoint: Endpoint, allowed: bool) -> tuple[str, ...]:
    options = endpoint.options
    if options is None or not endpoint.protected:
        rest = ("no, allowed" if allowed else "no", "", "", "", "")
    else:
        scope = "caller, anonymous refused" if options.anonymous == "refuse" else "caller"
        scope = scope if options.scope is None else dotted_name(options.scope)
        required = "required" if options.required else "optional"
        rest = ("yes", endpoint.mode, specification.lifetime(options), scope, required)
    return endpoint.method, endpoint.route, endpoint.view, *rest, endpoint.note


def as_markdown(endpoints: Sequence[Endpoint], allowed: Allowed) -> str:
    """Return Markdown text that tells clients how each endpoint uses idempotency keys.

    The IETF draft on `Idempotency-Key` asks a server to publish its rules (sections 2.2, 2.3 and 2.5.2). Unprotected
    endpoints are listed unless `allowed` returns True for them.
    """
    parts = ["# Idempotency keys\n"]
    parts += [_section(each, each.options) for each in endpoints if each.options is not None and each.protected]
    left = [endpoint for endpoint in endpoints if not endpoint.protected and not allowed(endpoint)]
    if left:
        parts.append("## Not protected\n\nThese ignore keys: a retry may run again.\n")
        parts += [f"- `{endpoint.method} {path(endpoint.route)}`" for endpoint in left]
    return "\n".join(parts)


def _section(endpoint: Endpoint, options: Options) -> str:
    facts = specification.facts(options)
    facts["Unique for"] += f"; operation `{options.operation or f'{endpoint.method} {path(endpoint.route)}'}`"
    if options.key is None:
        required = "required" if options.required else "optional; without it the request is not protected"
        facts = {"Header": f"`{get_settings().header}`, {required}", **facts}
    if endpoint.note:
        facts["Note"] = endpoint.note
    lines = [f"- {name}: {text}" for name, text in facts.items()]
    lines += [
        f'- {problem.status} `{problem.code}` "{problem.title}": {problem.detail}'
        f"{' `Retry-After`.' * ('Retry-After' in problem.headers)}"
        for problem in specification.documented_responses(options)
    ]
    return f"## {endpoint.method} {path(endpoint.route)}\n\n" + "\n".join(lines) + "\n"


def path(route: str) -> str:
    """Return a route as a readable path: `^orders/(?P<pk>[^/.]+)/$` becomes `/orders/<pk>/`."""
    return "/" + re.sub(r"\\(.)", r"\1", simplify_regex(route)).lstrip("/")
