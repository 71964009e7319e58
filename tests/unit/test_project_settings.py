"""The project's `IDEMPOTENCY` setting."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.validators import validate_slug

import django_idempotency
from django_idempotency.engine.conf import (
    resolve,
)
from django_idempotency.exceptions import IdempotencyConfigurationError


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "must be a dict"),
        ({"HEADERS": "x"}, "unknown IDEMPOTENCY setting 'HEADERS'. Did you mean 'HEADER'?"),
        ({"HEADER": 5}, "IDEMPOTENCY['HEADER']=5: give a value of type str."),
        ({"CREDENTIAL_HEADERS": "X-Key"}, "give a value of type list or tuple."),
        (
            {"KEY_VALIDATOR": "nowhere.at_all"},
            "IDEMPOTENCY['KEY_VALIDATOR']='nowhere.at_all' cannot be imported: No module named 'nowhere'.",
        ),
        ({"ERROR_RESPONSE": 5}, "give a callable or its dotted path."),
        ({"TTL": 0}, "idempotency option ttl=0"),
    ],
)
def test_a_wrong_setting_is_named(settings: Any, value: Any, message: str) -> None:
    """With what to give instead."""
    settings.IDEMPOTENCY = value
    with pytest.raises(IdempotencyConfigurationError) as caught:
        resolve()
    assert message in str(caught.value)


def test_callables_may_be_dotted_paths(settings: Any) -> None:
    """As elsewhere in Django's settings."""
    settings.IDEMPOTENCY = {
        "KEY_VALIDATOR": "django_idempotency.keys.is_uuid",
        "CREDENTIAL_HEADERS": ["X-Key"],
    }
    conf = django_idempotency.engine.conf.get_settings()
    assert conf.key_validator is not None
    assert conf.key_validator("x") is False
    assert conf.credential_headers == ("X-Key",)
    assert conf.header_meta == "HTTP_IDEMPOTENCY_KEY"
    with pytest.raises(ValidationError):
        validate_slug("a b")
