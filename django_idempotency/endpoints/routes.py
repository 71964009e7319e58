"""Every route of a URLconf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.urls import URLResolver, get_resolver


def routes(urlconf: str | None = None) -> Iterator[tuple[str, str, Any]]:
    """Each route as in `resolver_match.route`, its name with namespaces (or the empty string), and its callback."""
    yield from _below(get_resolver(urlconf).url_patterns)


def _below(
    patterns: Sequence[Any], prefix: str = "", namespaces: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, Any]]:
    for pattern in patterns:
        # Joined as Django does for resolver_match.route.
        route = str(pattern.pattern)
        route = prefix + (route.removeprefix("^") if prefix else route)
        if isinstance(pattern, URLResolver):
            inner = (*namespaces, pattern.namespace) if pattern.namespace else namespaces
            yield from _below(pattern.url_patterns, route, inner)
        else:
            yield route, ":".join((*namespaces, pattern.name)) if pattern.name else "", pattern.callback
