"""Which parts of a request are compared, for the option `fingerprint`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...exceptions import IdempotencyConfigurationError

Names = tuple[str, ...] | list[str]


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Choose what is compared with the first request, for the option `fingerprint`.

    Method, path, content type and the rest of the body count as with `fingerprint="request"`.

    Args:
        fields: the names in the body that count. Default: all. If the body has none of them, all of it counts.
        exclude: the names in the body that do not count, such as a time stamp that each retry renews.
        query: False leaves the query string out.

    Raises:
        IdempotencyConfigurationError: for impossible names.
    """

    fields: Names | None = None
    exclude: Names = ()
    query: bool = True

    def __post_init__(self) -> None:
        if self.fields is not None:
            _refuse_impossible("fields", self.fields, self.fields)
        _refuse_impossible("exclude", self.exclude, True)
        if self.query not in (True, False):
            raise IdempotencyConfigurationError(f"Fingerprint(query={self.query!r}): give True or False.")


def _refuse_impossible(argument: str, names: Any, enough: Any) -> None:
    if isinstance(names, (tuple, list)) and enough and all(isinstance(name, str) and _is_name(name) for name in names):
        return
    raise IdempotencyConfigurationError(
        f'Fingerprint({argument}={names!r}): give a tuple of names in the body, such as ("trace_id", "meta.sent_at").'
    )


def _is_name(name: str) -> bool:
    return all(name.split("."))
