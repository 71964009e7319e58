"""Which fields of a body are compared. A value that has no fields stays whole, so that it cannot equal another one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ..conf import Fingerprint
from .canonical import is_tagged

Names = Collection[str]
"""A dot leads into an object. A field whose own name has dots is found too: forms have such names."""
Fields = dict[str, Any]


def selected(value: Any, chosen: Fingerprint) -> Any:
    """The parts of a body that `chosen` compares. An object that has none of the chosen fields counts as a whole."""
    names = chosen.fields
    if names is not None:
        value = _in_objects(value, lambda fields: only(fields, names) or fields)
    return _without(value, chosen.exclude)


def only(value: Any, names: Names) -> Any:
    """The fields with these names."""

    def chosen(fields: Fields) -> Fields:
        found = {}
        for name, item in fields.items():
            if name in names:
                found[name] = item
            elif inner := _below(name, names):
                found[name] = only(item, inner)
        return found

    return _in_objects(value, chosen)


def _without(value: Any, names: Names) -> Any:
    def rest(fields: Fields) -> Fields:
        return {name: _without(item, _below(name, names)) for name, item in fields.items() if name not in names}

    return _in_objects(value, rest) if names else value


def _in_objects(value: Any, select: Callable[[Fields], Fields]) -> Any:
    """Apply `select` to an object, or to each object of a list. Lists in lists stay whole."""
    if isinstance(value, list):
        return [select(item) if _has_fields(item) else item for item in value]
    return select(value) if _has_fields(value) else value


def _has_fields(value: Any) -> bool:
    return isinstance(value, dict) and not is_tagged(value)


def _below(name: str, names: Names) -> set[str]:
    """What the names say about the inside of the field `name`: of "meta.sent_at" and "meta" it is "sent_at"."""
    start = f"{name}."
    return {other.removeprefix(start) for other in names if other.startswith(start)}
