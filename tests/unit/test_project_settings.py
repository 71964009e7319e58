"""The project's `IDEMPOTENCY` setting."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.validators import validate_slug

import django_idempotency
from django_idempotency.engine.conf import (
    resolve,
)
from django_idempotency.exceptions import IdempotencyConfigurationError
from tests.at_rest import OLD


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
        ({"ENCRYPTION_KEYS": OLD}, "IDEMPOTENCY['ENCRYPTION_KEYS']: give a list of Fernet keys, with at least one."),
        ({"ENCRYPTION_KEYS": []}, "with at least one. To switch encryption off, leave the setting out."),
        (
            {"ENCRYPTION_KEYS": [OLD, "s3cret"]},
            "IDEMPOTENCY['ENCRYPTION_KEYS']: entry 2 is no Fernet key. Make one with",
        ),
        ({"ENCRYPTION_KEYS": [OLD.encode()]}, "IDEMPOTENCY['ENCRYPTION_KEYS']: entry 1 is no Fernet key."),
        ({"ENCRYPTION_KEYS": [None]}, "IDEMPOTENCY['ENCRYPTION_KEYS']: entry 1 is no Fernet key."),
        ({"UNSETTLED_TTL": -1}, "IDEMPOTENCY['UNSETTLED_TTL']=-1: give 0 or more seconds, at most 100 years, or None."),
        (
            {"RUNBOOK_URL": "javascript:alert(1)"},
            "IDEMPOTENCY['RUNBOOK_URL']='javascript:alert(1)': give an address such",
        ),
        ({"RUNBOOK_URL": "//evil.example"}, "give an address such as"),
        ({"RUNBOOK_URL": "https://a b"}, "give an address such as"),
        ({"RUNBOOK_URL": 5}, "give an address such as"),
        ({"UNSETTLED_TTL": "1d"}, "IDEMPOTENCY['UNSETTLED_TTL']='1d': give a timedelta or a number of seconds."),
    ],
)
def test_a_wrong_setting_is_named(settings: Any, value: Any, message: str) -> None:
    """With what to give instead."""
    settings.IDEMPOTENCY = value
    with pytest.raises(IdempotencyConfigurationError) as caught:
        resolve()
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert OLD not in str(caught.value)


def test_keys_of_encryption_are_in_no_repr(settings: Any) -> None:
    """Reports of errors show local variables."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    conf = django_idempotency.engine.conf.get_settings()
    assert conf.encryption_keys == (OLD,)
    assert OLD not in repr(conf)


def test_without_cryptography_the_command_to_install_it_is_told(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any view runs, and only if there are keys."""
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    resolve()
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    with pytest.raises(IdempotencyConfigurationError, match=r"`cryptography`\. Run: pip install cryptography"):
        resolve()


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


@pytest.mark.parametrize("address", [None, "https://wiki.example.com/a#b", "/runbook/"])
def test_a_runbook_is_a_page(settings: Any, address: str | None) -> None:
    """Of the web, or of this site."""
    settings.IDEMPOTENCY = {"RUNBOOK_URL": address}
    assert django_idempotency.engine.conf.get_settings().runbook_url == address
