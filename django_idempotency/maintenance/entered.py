"""Convert entered text into a step's result or a key's response, if the text is valid."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import router
from django.db.models import Model
from django.utils.connection import ConnectionDoesNotExist
from django.utils.translation import gettext as _

from ..engine.execution.results import decode, encode_step
from ..engine.protocol.outcomes import Snapshot
from ..exceptions import ResultNotStorable

AS_IT_IS = ("X-Content-Type-Options", "nosniff")
"""Stops browsers from sniffing the body for HTML: they have to trust its content type."""


def answer_of(status: int, content_type: str, body: str) -> Snapshot:
    """Return the response that a person has entered for a key.

    Raises `ValueError` if the content type is JSON but the body is not.
    """
    if body and content_type.endswith("json"):  # a 204, for example, has an empty body
        json_value(body)
    headers = (("Content-Type", content_type), AS_IT_IS)
    return Snapshot(status_code=status, headers=headers, body=body.encode())


def entered_answer(status: int, body: str) -> Snapshot:
    """Return the response for a body entered without a content type: JSON if it begins like JSON, otherwise plain text.

    Raises `ValueError` if the body begins like JSON but is not valid JSON.
    """
    is_json = body.lstrip().startswith(("{", "[", '"'))
    return answer_of(status, "application/json" if is_json else "text/plain; charset=utf-8", body)


def result_of(
    value: Any, *, using: str, envelope: bool = False, allowed: Callable[[type[Model]], bool] = lambda model: True
) -> Any:
    """Convert an entered JSON value into a step's result.

    Args:
        value: what `json_value` returned. A JSON object with a model and a primary key stands for that row.
        using: the alias of the database that the step's key is in.
        envelope: whether the step itself returns objects that look like the stored form of a result.
        allowed: tells whether this person may know which of a model's rows exist.

    Raises:
        ValueError: the value cannot be the result. The message says why.
    """
    if is_envelope(value) and not envelope:
        raise ValueError(_("This is the envelope in which a result is stored. Enter only what is inside “value”."))
    result = _row_of(value, using, allowed)
    try:
        encode_step(result)
    except ResultNotStorable as error:
        raise ValueError(str(error)) from error
    return result


def json_value(text: str) -> Any:
    """Parse JSON. Raises `ValueError` for invalid JSON, and for NaN and Infinity, which Python's `json` accepts."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (RecursionError, ValueError) as error:
        raise ValueError(_("This is not JSON: %(error)s.") % {"error": error}) from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def is_envelope(value: Any) -> bool:
    """Whether a value looks like `{"value": 5}`, the form in which results are stored."""
    return isinstance(value, dict) and list(value) == ["value"]


def _row_of(value: Any, using: str, allowed: Callable[[type[Model]], bool]) -> Any:
    if not (isinstance(value, dict) and {"model", "pk"} <= set(value) <= {"model", "pk", "using"}):
        return value
    try:
        model = apps.get_model(str(value["model"]))
    except (LookupError, ValueError):
        return value
    if not allowed(model):
        raise ValueError(_("You need the permission to view %(model)s.") % {"model": value["model"]})
    # Unless the value names an alias, read the row from the write alias, as a retry will, and not from a replica. If
    # the key is on a different alias, the result may be a row of the key's database. A row with the same id on the
    # write alias could then be another customer's.
    alias = value.get("using") or router.db_for_write(model)
    if alias != using and not value.get("using"):
        text = _(
            "The key is in the database “%(key)s”, but %(model)s is written to “%(row)s”. Say which one the row is in: "
            "add “using” to the object."
        )
        raise ValueError(text % {"key": using, "model": value["model"], "row": alias})
    missing = (ObjectDoesNotExist, ConnectionDoesNotExist, ValidationError, ArithmeticError, ValueError, TypeError)
    try:
        if "\0" in str(value["pk"]):
            raise ValueError("PostgreSQL refuses to look for NUL")
        return decode(json.dumps({**value, "using": alias}))
    except missing as error:
        text = _("There is no %(model)s with the primary key %(pk)s.")
        raise ValueError(text % {"model": value["model"], "pk": value["pk"]}) from error
