"""The field extension for strawberry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from strawberry.extensions import FieldExtension

from .fields import mutate_once

__all__ = ["Once"]


class Once(FieldExtension):
    """Run a mutation once: `@strawberry.mutation(extensions=[Once(ttl=…)])`. The arguments are those of `mutate_once`.

    The transaction contains what the mutation's resolver does.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def resolve(self, next_: Callable[..., Any], source: Any, info: Any, **kwargs: Any) -> Any:
        work = partial(next_, source, info, **kwargs)
        return mutate_once(info.context.request, info, work, kwargs, **self.options)
