"""Every route of a URLconf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.urls import URLResolver, get_resolver

ADMIN = "admin"
"""The application namespace of each `AdminSite`. The name of the site can differ."""
SUFFIX = re.compile(r"(?:\\\.\(\?P<\w+>|<drf_format_suffix)")
"""How the REST framework's `format_suffix_patterns` go on after the route itself: `orders.json` beside `orders/`."""


class Route(NamedTuple):
    """One route.

    route: as in `resolver_match.route`.
    name: with namespaces, or the empty string.
    in_admin: below an `AdminSite`.
    """

    route: str
    name: str
    callback: Any
    in_admin: bool


def routes(urlconf: str | None = None) -> Iterator[Route]:
    """Each route, in the order of the URLconf."""
    yield from _below(get_resolver(urlconf).url_patterns)


def format_suffixes(found: Sequence[Route]) -> set[str]:
    """The routes that only add a format suffix to another route of the same view."""
    plain: dict[int, list[str]] = {}
    for route in found:
        plain.setdefault(id(route.callback), []).append(route.route.rstrip("$").rstrip("/"))
    return {
        route.route
        for route in found
        for start in plain[id(route.callback)]
        if route.route.startswith(start) and SUFFIX.match(route.route, len(start))
    }


def _below(
    patterns: Sequence[Any], prefix: str = "", namespaces: tuple[str, ...] = (), in_admin: bool = False
) -> Iterator[Route]:
    for pattern in patterns:
        # Joined as Django does for resolver_match.route.
        route = str(pattern.pattern)
        route = prefix + (route.removeprefix("^") if prefix else route)
        if isinstance(pattern, URLResolver):
            inner = (*namespaces, pattern.namespace) if pattern.namespace else namespaces
            yield from _below(pattern.url_patterns, route, inner, in_admin or pattern.app_name == ADMIN)
        else:
            yield Route(
                route, ":".join((*namespaces, pattern.name)) if pattern.name else "", pattern.callback, in_admin
            )
