"""What every operation knows about itself, in both modes: its key, and what it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload
from uuid import UUID, uuid4, uuid5

from asgiref.sync import sync_to_async

from ..protocol.digests import derived_key
from .resources import resource_of
from .steps import checked_name

if TYPE_CHECKING:
    from django.db.models import Model

    from ..protocol.digests import Identity
    from ..protocol.outcomes import Resource


class Handle:
    """The key of an operation. identity: None if the request has no key, or is not protected."""

    _namespace: UUID | None = None

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
