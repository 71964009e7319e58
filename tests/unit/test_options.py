"""Options, settings, and how they fall through."""

from __future__ import annotations

import pickle
from copy import deepcopy
from datetime import timedelta
from typing import Any, get_type_hints

import pytest
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.validators import validate_slug

import django_idempotency
from django_idempotency.engine.conf import (
    Idempotency,
    Keywords,
    OnceKeywords,
    UnleasedKeywords,
    as_options,
    is_final,
    resolve,
    settings,
)
from django_idempotency.engine.execution.once import OPTIONS
from django_idempotency.exceptions import IdempotencyConfigurationError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ttl", v) for v in (0, -1, 0.5, "1h", None, True, timedelta(0), float("nan"), timedelta(days=40000))),
        *(("wait", v) for v in (-1, "x", None)),
        *(("required", v) for v in (None, 1, "yes")),
        *(("methods", v) for v in ("POST", (), ("post",), ("GET", "POST"), 5, (1,))),
        *(("in_progress_status", v) for v in (200, 102, "409")),
        ("mismatch_status", 400),
        *(("lease", v) for v in (0, -1, "2m", True, timedelta(0))),
        *(("on_abandoned", v) for v in ("held", None)),
        ("reconcile", "look_up"),
        *(("anonymous", v) for v in ("share", None)),
        *(("scope", v) for v in ("user", 1)),
        *(("operation", v) for v in ("", 1)),
        ("key", "header"),
        *(("fingerprint", v) for v in ("body", [], ("a", 1), (), 5)),
        *(("record", v) for v in (None, 200)),
        ("may_replay", True),
        *(("store_body", v) for v in (None, 0)),
        *(("max_body_bytes", v) for v in (-1, 1.5, True)),
        *(("using", v) for v in ("", 3)),
    ],
)
def test_an_impossible_value_is_named(name: str, value: Any) -> None:
    """With the option, the value and what to give."""
    with pytest.raises(IdempotencyConfigurationError) as caught:
        Idempotency(**{name: value})
    assert str(caught.value).startswith(f"idempotency option {name}={value!r}: ")


def test_a_set_up_error_is_djangos_and_pythons() -> None:
    """Whoever catches either gets it."""
    assert issubclass(IdempotencyConfigurationError, ImproperlyConfigured)
    assert issubclass(IdempotencyConfigurationError, TypeError)


def test_an_unknown_option_gets_a_suggestion() -> None:
    """A typo is the usual reason."""
    with pytest.raises(IdempotencyConfigurationError, match=r"unknown idempotency option 'tll'\. Did you mean 'ttl'\?"):
        as_options({"tll": 5})
    with pytest.raises(IdempotencyConfigurationError, match=r"unknown idempotency option 'tll'\. Did you mean 'ttl'\?"):
        Idempotency(tll=5)  # type: ignore[call-arg]
    with pytest.raises(IdempotencyConfigurationError, match="neither an Idempotency nor a dict"):
        as_options("ttl")  # type: ignore[arg-type]


def test_type_checkers_know_the_same_options() -> None:
    """As keyword arguments, by name and type; `once` takes those that need no request."""
    assert get_type_hints(Keywords) == get_type_hints(Idempotency)
    assert sorted(OnceKeywords.__annotations__) == sorted(OPTIONS)
    assert {*OPTIONS} - {*UnleasedKeywords.__annotations__} == {"lease", "on_abandoned", "reconcile"}


@pytest.mark.parametrize("copied", [deepcopy, lambda options: pickle.loads(pickle.dumps(options))])
def test_a_copy_has_the_same_options(copied: Any) -> None:
    """What was left out still is: it comes from the next layer."""
    copy = copied(Idempotency(ttl=60))
    assert copy.given() == {"ttl": 60}


def test_defaults() -> None:
    """The documented ones."""
    options = resolve()
    assert (options.ttl_seconds, options.required, options.methods, options.wait_seconds) == (
        86400.0,
        True,
        ("POST", "PATCH"),
        0.0,
    )
    assert (options.in_progress_status, options.mismatch_status, options.anonymous) == (409, 422, "shared")
    assert (options.store_body, options.max_body_bytes, options.using) == (True, 1048576, None)


def test_layers_fall_through(settings: Any) -> None:
    """Nearest first, then the setting, then the default; a changed setting is seen."""
    near, far = Idempotency(ttl=1), Idempotency(ttl=2, wait=2)
    settings.IDEMPOTENCY = {"TTL": 3, "wait": 3, "REQUIRED": False}
    options = resolve(near, far)
    assert (options.ttl, options.wait, options.required, options.mismatch_status) == (1, 2, False, 422)
    settings.IDEMPOTENCY = {}
    assert resolve(near, far).required is True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on_abandoned": "hold"}, "on_abandoned='hold' is about leased mode. Pass lease="),
        ({"reconcile": len}, "is about leased mode"),
        ({"in_progress_status": 202}, "in_progress_status=202 is about leased mode"),
        ({"lease": 60, "ttl": 60}, "ttl=60 and lease=60: ttl must exceed lease"),
    ],
)
def test_options_that_contradict_each_other_are_named(given: Any, message: str) -> None:
    """When they are brought together."""
    with pytest.raises(IdempotencyConfigurationError) as caught:
        resolve(Idempotency(**given))
    assert message in str(caught.value)


def test_a_projects_defaults_for_leased_views_leave_the_others_alone(settings: Any) -> None:
    """They wait for a lease."""
    settings.IDEMPOTENCY = {"ON_ABANDONED": "hold", "IN_PROGRESS_STATUS": 202, "RECONCILE": len}
    assert resolve().in_progress_status == 409
    assert resolve().repeats_calls is False
    leased = resolve(Idempotency(lease=60))
    assert (leased.in_progress_status, leased.on_abandoned, leased.lease_seconds) == (202, "hold", 60.0)


def test_when_a_call_in_doubt_may_be_made_again() -> None:
    """Under "retry", or if somebody can be asked."""
    assert resolve(Idempotency(lease=60)).repeats_calls is True
    assert resolve(Idempotency(lease=60, on_abandoned="hold")).repeats_calls is False
    assert resolve(Idempotency(lease=60, on_abandoned="hold", reconcile=len)).repeats_calls is True


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
    conf = django_idempotency.engine.conf.settings()
    assert conf.key_validator is not None
    assert conf.key_validator("x") is False
    assert conf.credential_headers == ("X-Key",)
    with pytest.raises(ValidationError):
        validate_slug("a b")


def test_the_default_rule_of_what_is_final() -> None:
    """Below 500, and not one of those that a retry may change."""
    statuses = [s for s in range(200, 600) if not is_final(type("Response", (), {"status_code": s}))]
    assert statuses == [401, 403, 408, 409, 423, 425, 429, *range(500, 600)]


def test_the_public_names() -> None:
    """Exported, and nothing else."""
    for name in django_idempotency.__all__:
        assert getattr(django_idempotency, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'run'"):
        django_idempotency.run  # noqa: B018
    assert settings().header_meta == "HTTP_IDEMPOTENCY_KEY"
