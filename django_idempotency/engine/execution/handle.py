"""What every operation knows about itself, in both modes: its key, and what it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload
from uuid import UUID, uuid4, uuid5

from asgiref.sync import sync_to_async
from django.db.models import Model

from ...exceptions import IdempotencyConfigurationError
from ..protocol.digests import derived_key, has_controls
from ..protocol.outcomes import Resource
from .steps import checked_name

if TYPE_CHECKING:
    from ..protocol.digests import Identity

MAX_TYPE, MAX_ID = 100, 255
"""Characters: the widths of the columns."""


class Handle:
    """The key of an operation. identity: None if the request has no key, or is not protected."""

    _namespace: UUID | None = None
    _keyed: frozenset[str] = frozenset()
    """The names of the steps whose derived key was asked for."""

    def __init__(self, identity: Identity | None, attempt: int = 1, resource: Resource | None = None) -> None:
        self.key: str | None = None if identity is None else identity.key
        self.attempt = attempt
        self._identity = identity
        self._resource = resource

    @property
    def reference(self) -> str | None:
        """The 16 hexadecimal digits that name the key in logs and in the admin. None without a key."""
        return None if self._identity is None else self._identity.reference

    @property
    def resource(self) -> Resource | None:
        """What the operation is about: type and id, as `refer_to` has kept them. None: `refer_to` was never called."""
        return self._resource

    def derive_key(self, name: str) -> str:
        """An idempotency key for the other side: a UUID, the same in every attempt, another one for each name.

        Without a key of its own, the operation cannot recognise a retry: then it is stable within this request only.
        """
        checked_name(name)
        self._keyed |= {name}
        if self._identity is not None:
            return derived_key(self._identity, name)
        self._namespace = self._namespace or uuid4()
        return str(uuid5(self._namespace, name))

    @overload
    def refer_to(self, what: Model, /) -> None: ...

    @overload
    def refer_to(self, what: str, id_: str | int | UUID, /) -> None: ...

    def refer_to(self, what: Any, id_: Any = None, /) -> None:
        """Keep what the operation is about with the key: for the admin, the search, events and logs.

        Atomic mode: the result carries it, so it costs no statement. Leased mode: one statement, under the fence. Call
        it inside the function of `write`, and both commit together. A second call replaces the first one.

        Args:
            what: a saved model instance, kept as its label ("shop.order") and primary key; or a type of 1 to 100
                characters without spaces.
            id_: of a type: 1 to 255 characters, such as "59"; an int or a UUID is kept as its text.

        Raises:
            LeaseLost: in leased mode, if another worker has taken the key over.
            IdempotencyConfigurationError: for an instance that was not saved, or a type or id that cannot be kept.
        """
        resource = resource_of(what, id_)
        self._keep_resource(resource)
        self._resource = resource

    @overload
    async def arefer_to(self, what: Model, /) -> None: ...

    @overload
    async def arefer_to(self, what: str, id_: str | int | UUID, /) -> None: ...

    async def arefer_to(self, what: Any, id_: Any = None, /) -> None:
        """`refer_to` for `async def` views."""
        refer_to: Any = self.refer_to
        await sync_to_async(refer_to)(what, id_)

    def _keep_resource(self, resource: Resource) -> None:
        """Store it now. Nothing to do where the result carries it, or without a key."""


def resource_of(what: Model | str, id_: str | int | UUID | None) -> Resource:
    """The type and the id to keep. Raises `IdempotencyConfigurationError` for what cannot be kept and found again."""
    if isinstance(what, Model):
        return _of_instance(what, id_)
    named = isinstance(what, str) and 0 < len(what) <= MAX_TYPE and not any(c.isspace() for c in what)
    if not named or has_controls(what):
        raise IdempotencyConfigurationError(
            f"refer_to({what!r:.200}, …): give a saved model instance, or a type of 1 to {MAX_TYPE} characters without "
            "spaces, as in refer_to('order', '59')."
        )
    text = str(id_) if isinstance(id_, str | int | UUID) and not isinstance(id_, bool) else ""
    if not 0 < len(text) <= MAX_ID or has_controls(text):
        raise IdempotencyConfigurationError(
            f"refer_to({what!r}, {id_!r:.300}): give the id as a str, an int or a UUID of 1 to {MAX_ID} characters "
            "without control characters, as in refer_to('order', '59')."
        )
    return what, text


def _of_instance(instance: Model, id_: object) -> Resource:
    label = instance._meta.label_lower
    if id_ is not None:
        raise IdempotencyConfigurationError(
            f"refer_to(<{label}>, {id_!r:.300}): a model instance has its own id. Give the instance alone."
        )
    if instance.pk is None:
        raise IdempotencyConfigurationError(
            f"refer_to(<{label}>): the instance has no primary key yet. Save it before refer_to()."
        )
    return resource_of(label, str(instance.pk))
