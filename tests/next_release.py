"""The release after this one, as far as it would store keys in another way: another rule first in each of the lists.

Nothing of the engine is replaced. What a next release would change is the lists, and it keeps what is in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from django_idempotency.engine.protocol import versions
from django_idempotency.engine.protocol.digests import digest
from django_idempotency.engine.stores import sealing, values

T = TypeVar("T")


def next_rule(kind: str, *parts: bytes | str) -> bytes:
    """Requests are the same as before, and their hashes are others."""
    return digest("the next rule", versions.by_value(kind, *parts))


def next_place(row: Any, column: str, about: Any) -> bytes:
    return digest("the next place", sealing.SEALS["enc1:"](row, column, about))


def joined(told: Mapping[str, object], body: bytes) -> bytes:
    """The body first, after its length."""
    return len(body).to_bytes(8, "big") + body + json.dumps(told).encode()


def split(text: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(text[:8], "big")
    return json.loads(text[end:]), text[8:end]


THIS = {"RULES": versions.RULES, "SEALS": sealing.SEALS, "FORMATS": values.FORMATS}
NEXT = {
    "RULES": (next_rule, *versions.RULES),
    "SEALS": {"enc2:": next_place, **sealing.SEALS},
    "FORMATS": {"2": values.Format(joined, split), **values.FORMATS},
}
HOMES = {"RULES": versions, "SEALS": sealing, "FORMATS": values}


@contextmanager
def of_release(lists: Mapping[str, Any]) -> Iterator[None]:
    """Until the block ends, this process is of that release. Blocks may be nested: what they do is done by turns."""
    with pytest.MonkeyPatch.context() as patch:
        for name, home in HOMES.items():
            patch.setattr(home, name, lists[name])
        yield


def become_the_next() -> None:
    """For a process of its own."""
    for name, home in HOMES.items():
        setattr(home, name, NEXT[name])


def by_the_next(act: Callable[[], T]) -> T:
    with of_release(NEXT):
        return act()


def by_this(act: Callable[[], T]) -> T:
    with of_release(THIS):
        return act()
