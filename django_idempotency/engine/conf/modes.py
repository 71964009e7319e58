"""Which modes exist, and in which mode does an endpoint run?

Each mode is a subclass of `Runner` in a module of its own, registered here. See `execution/runners.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from django.utils.module_loading import import_string

if TYPE_CHECKING:
    from .options import Idempotency

REGISTERED = [
    "django_idempotency.engine.execution.elsewhere.Elsewhere",
    "django_idempotency.engine.execution.leased.Leased",
    "django_idempotency.engine.execution.atomic.Atomic",
]
"""An endpoint's mode is the first of these that suits its options. This module must not import the modes' modules, so
they are imported when the first options are resolved."""


class Mode(ABC):
    """A mode determines which values an endpoint's options can have, and where the endpoint's keys are stored.

    Args:
        options: the endpoint's resolved options.

    Attributes:
        default: the options whose default differs in this mode.
        possible: the values that some options are limited to, with the default first. Other options can have any value.
        misfit: the end of the error message about any other value of such an option. `%s` is the option's name.
    """

    default: ClassVar[Mapping[str, Any]] = {}
    possible: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    misfit: ClassVar[str] = ""

    def __init__(self, options: Idempotency) -> None:
        self.options = options

    @staticmethod
    @abstractmethod
    def suits(backend: str | None, lease: Any) -> bool:
        """Return whether these options suit this mode. An endpoint runs in the first registered mode that suits it."""

    def refuse(self) -> None:  # noqa: B027 (most modes have nothing to refuse)
        """Raise `IdempotencyConfigurationError` if this mode can't work with these options."""

    @abstractmethod
    def alias(self) -> str | None:
        """Return the alias of the database that keeps the keys, or None if they are not in a database."""


def mode_of(backend: str | None, lease: Any) -> type[Mode]:
    return next(mode for mode in registered() if mode.suits(backend, lease))


def fits(name: str, value: Any, mode: type[Mode]) -> bool:
    """Return whether the value is allowed for the option in this mode."""
    return value in mode.possible.get(name, (value,))


@cache
def registered() -> tuple[type[Mode], ...]:
    return tuple(map(import_string, REGISTERED))
