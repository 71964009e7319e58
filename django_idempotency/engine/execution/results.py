"""How is a step's result stored? As JSON, or as the primary key of a model instance."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

from django.apps import apps
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models

from ...exceptions import ResultNotStorable
from ...limits import is_limit

MAX_STEP_BYTES = 1024 * 1024
"""The size limit for a step's result. A result is meant to be a short receipt, such as the id of a charge, because
every later attempt reads all of its key's results."""


def encode_step(value: Any) -> str:
    """Encode a step's result for storage.

    Raises:
        ResultNotStorable: the value is neither JSON nor a saved model instance, or takes more than 1 MiB.
    """
    text = encode(value)  # ASCII, so characters are bytes
    if len(text) > MAX_STEP_BYTES:
        raise ResultNotStorable(
            f"the result of a step takes {len(text)} bytes as JSON, and at most {MAX_STEP_BYTES} can be kept. Return "
            "what the next steps need, such as the id of the charge."
        )
    return text


def encode(value: Any) -> str:
    """Encode a JSON value or a saved model instance for storage. Raises `ResultNotStorable` for anything else.

    A limit that strikes meanwhile is raised unchanged. A field may raise any exception, so the type of any other error
    doesn't show whether the value caused it. The value is therefore encoded once more. If this succeeds, the value can
    be stored, and the first error is raised unchanged.
    """
    try:
        return _encode(value)
    except Exception as error:
        if is_limit(error):
            raise
        struck = error
    try:
        if isinstance(struck, RecursionError):
            with ThreadPoolExecutor(1) as thread:  # a new thread has an empty stack
                thread.submit(_encode, value).result()
        else:
            _encode(value)
    except Exception as error:
        raise ResultNotStorable(
            f"{type(value).__qualname__} cannot be kept as JSON ({error}). "
            "Return JSON values (dict, list, str, int, …), such as an SDK object's to_dict() or "
            "model_dump(mode='json'), or one saved model instance."
        ) from error
    raise struck


def _encode(value: Any) -> str:
    stored: dict[str, Any] = {"value": value}
    if isinstance(value, models.Model):
        stored = {"model": value._meta.label, "pk": _encode_pk(value), "using": value._state.db}
    # Python would write NaN and Infinity, which are not valid JSON.
    return json.dumps(stored, cls=DjangoJSONEncoder, allow_nan=False)


def encode_returned(value: Any) -> tuple[str | None, BaseException | None]:
    """Encode what a call has returned.

    Returns:
        A tuple of the text and the exception to raise once the text is stored. If the value is lost, the text is None
        and the exception says why. Otherwise, the exception is what interrupted the encoding, or None. An interruption
        doesn't lose the value of a call that has returned: the value is encoded again.
    """
    struck: BaseException | None = None
    for _ in range(3):  # Ctrl-C is often pressed twice
        try:
            return encode_step(value), struck
        except ResultNotStorable as error:
            return None, error
        except BaseException as error:  # noqa: BLE001 (raised later)
            struck = error
    raise cast(BaseException, struck)


def _encode_pk(instance: models.Model) -> Any:
    """Encode each field as Django's serializers would. Plain JSON would truncate a time's microseconds."""
    field: Any
    parts: list[Any] = []
    for field in instance._meta.pk_fields:
        part = getattr(instance, field.attname)
        if part is None or instance._state.adding or hasattr(part, "resolve_expression"):
            raise ValueError(f"{instance!r} has not been saved, or was deleted, so it cannot be fetched again")
        while field.remote_field:
            field = field.target_field
        if not isinstance(part, str | int):
            part = field.value_to_string(SimpleNamespace(**{field.attname: field.to_python(part)}))
        parts.append(part)
    return parts if instance._meta.is_composite_pk else parts[0]


def decode(text: str | None) -> Any:
    """Return the stored value. A model instance is fetched; if its row is gone, `DoesNotExist` is raised."""
    if text is None:
        return None
    stored = json.loads(text)
    if "model" not in stored:
        return stored["value"]
    model = apps.get_model(stored["model"])
    parts = stored["pk"] if model._meta.is_composite_pk else [stored["pk"]]
    pk = tuple(field.to_python(part) for field, part in zip(model._meta.pk_fields, parts, strict=True))
    return model._base_manager.using(stored["using"]).get(pk=pk if model._meta.is_composite_pk else pk[0])


def as_stored(value: Any, text: str) -> Any:
    """Return the value as every retry will read it. A tuple, for example, becomes a list."""
    return value if isinstance(value, models.Model) else decode(text)
