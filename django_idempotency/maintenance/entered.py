"""What a person enters as the result of a step, in the admin or in a command."""

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

AS_IT_IS = ("X-Content-Type-Options", "nosniff")
"""Of each answer by hand: browsers take the content type for true, and do not look into the body for HTML."""


def json_value(text: str) -> Any:
    """Return the value of a JSON text. Raises `ValueError`, also for NaN and Infinity, which Python reads."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def is_envelope(value: Any) -> bool:
    """Whether this is the form in which a result is kept, `{"value": …}`, and not the result itself."""
    return isinstance(value, dict) and list(value) == ["value"]


def row_of(value: Any, *, allowed: Callable[[type[Model]], bool] = lambda model: True) -> Any:
    """Return the model instance that a value names in the way in which results are shown, else the value itself.

    allowed: whether this person may know which rows of the model exist.

    Raises `LookupError` if the model has no such row, or if the person may not know.
    """
    if not (isinstance(value, dict) and {"model", "pk"} <= set(value) <= {"model", "pk", "using"}):
        return value
    try:
        model = apps.get_model(str(value["model"]))
    except (LookupError, ValueError):
        return value
    if not allowed(model):
        raise LookupError(_("You need the permission to view %(model)s.") % {"model": value["model"]})
    missing = (ObjectDoesNotExist, ConnectionDoesNotExist, ValidationError, ArithmeticError, ValueError, TypeError)
    try:
        if "\0" in str(value["pk"]):
            raise ValueError("PostgreSQL refuses to look for NUL")
        # The retry fetches the row from the same alias: never from a replica.
        return model._base_manager.using(value.get("using") or router.db_for_write(model)).get(pk=value["pk"])
    except missing as error:
        text = _("There is no %(model)s with the primary key %(pk)s.")
        raise LookupError(text % {"model": value["model"], "pk": value["pk"]}) from error
