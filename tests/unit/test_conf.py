"""Options, settings, and what comes out of all layers."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from copy import deepcopy
from datetime import timedelta
from typing import Any, get_type_hints

import pytest

from django_idempotency.engine.conf import (
    LEASED,
    Idempotency,
    Keywords,
    OnceKeywords,
    as_options,
    get_settings,
    resolve,
)
from django_idempotency.engine.conf.options import is_final
from django_idempotency.exceptions import IdempotencyConfigurationError
from tests.at_rest import OLD

# --- one layer


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ttl", v) for v in (0, -1, 0.5, "1h", None, True, timedelta(0), float("nan"), timedelta(days=40000))),
        *(("wait", v) for v in (-1, "x", None)),
        *(("required", v) for v in (None, 1, "yes")),
        *(("methods", v) for v in ("POST", (), ("post",), ("GET", "POST"), 5, (1,))),
        *(("in_progress_status", v) for v in (200, 102, "409", 429)),
        ("mismatch_status", 400),
        *(("lease", v) for v in (0, -1, "2m", True, timedelta(0))),
        *(("on_abandoned", v) for v in ("held", None)),
        *(("late_keys", v) for v in ("never", None, True)),
        ("reconcile", "look_up"),
        *(("anonymous", v) for v in ("share", None)),
        *(("scope", v) for v in ("user", 1)),
        *(("operation", v) for v in ("", 1)),
        ("key", "header"),
        *(("fingerprint", v) for v in ("body", [], ("a", 1), (), 5)),
        *(("record", v) for v in (None, 200, "failure")),
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


def test_an_unknown_option_gets_a_suggestion() -> None:
    """A typo is the usual reason."""
    with pytest.raises(IdempotencyConfigurationError, match=r"unknown idempotency option 'tll'\. Did you mean 'ttl'\?"):
        as_options({"tll": 5})
    with pytest.raises(IdempotencyConfigurationError, match=r"unknown idempotency option 'tll'\. Did you mean 'ttl'\?"):
        Idempotency(tll=5)  # type: ignore[call-arg]
    with pytest.raises(IdempotencyConfigurationError, match="neither an Idempotency nor a dict"):
        as_options("ttl")  # type: ignore[arg-type]


@pytest.mark.parametrize("copied", [deepcopy, lambda options: pickle.loads(pickle.dumps(options))])
def test_a_copy_has_the_same_options(copied: Any) -> None:
    """What was left out still is: it comes from the next layer."""
    copy = copied(Idempotency(ttl=60))
    assert copy.given() == {"ttl": 60}


class Unhashable:
    """A callable that is equal to every other one, and has no hash."""

    def __eq__(self, other: object) -> bool:
        return True

    def __call__(self, request: Any) -> str:
        return "k"


def test_options_are_equal_by_value() -> None:
    """A layer that a call or a request makes anew is the one that has been resolved; a list is a tuple."""
    fresh = [Idempotency(ttl=timedelta(hours=1), methods=["POST", "PUT"], scope=is_final) for _ in range(2)]
    assert fresh[0] == fresh[1] == Idempotency(scope=is_final, methods=("POST", "PUT"), ttl=timedelta(hours=1))
    assert len({*fresh}) == 1
    assert Idempotency(methods={"PUT", "POST"}) == Idempotency(methods=["POST", "PUT"])
    assert Idempotency(fingerprint=["a", "b"]).fingerprint == ("a", "b")  # type: ignore[arg-type]
    assert resolve(fresh[0]) is resolve(fresh[1])


@pytest.mark.parametrize(
    "other", [Idempotency(), Idempotency(ttl=61), Idempotency(wait=60), resolve(Idempotency(ttl=60)), {"ttl": 60}]
)
def test_other_options_are_not_equal(other: Any) -> None:
    """Nor is what they resolve to, nor a dict."""
    assert Idempotency(ttl=60) != other


def test_what_cannot_be_hashed_counts_by_identity() -> None:
    """A callable whose attributes may change is not another one that is equal today; nor is a copy of it."""
    one = Unhashable()
    assert Idempotency(key=one) == Idempotency(key=one)
    assert Idempotency(key=one) != Idempotency(key=Unhashable())
    original = Idempotency(key=one)
    assert deepcopy(original) != original
    assert resolve(original).key is one


def test_a_list_that_changes_later_changes_no_options() -> None:
    """They are cached."""
    methods = ["POST"]
    options = Idempotency(methods=methods)
    methods.append("PUT")
    assert resolve(options).methods == ("POST",)


def test_the_default_rule_of_what_is_final() -> None:
    """Below 500, and not one of those that a retry may change."""
    statuses = [s for s in range(200, 600) if not is_final(type("Response", (), {"status_code": s}))]
    assert statuses == [401, 403, 408, 412, 423, 425, 429, *range(500, 600)]


def test_ttl_and_lease_are_refused_where_they_are_written() -> None:
    """Not only when a view resolves its options."""
    with pytest.raises(IdempotencyConfigurationError, match="ttl=30 and lease=60: ttl must exceed lease"):
        Idempotency(lease=60, ttl=30)


def test_type_checkers_know_the_same_options() -> None:
    """As keyword arguments, by name and type; `once` takes those that need no request."""
    assert get_type_hints(Keywords) == get_type_hints(Idempotency)
    assert sorted(OnceKeywords.__annotations__) == sorted(
        ("ttl", "wait", "lease", "on_abandoned", "backend", "reconcile", "operation", "using")
    )


# --- all layers


def test_defaults() -> None:
    """The documented ones."""
    options = resolve()
    assert (options.ttl_seconds, options.wait_seconds, options.lease_seconds, options.policy) == (
        *(86400.0, 0.0, None, None),
    )
    assert (options.required, options.methods, options.late_keys) == (True, ("POST", "PATCH"), "run")
    assert (options.in_progress_status, options.mismatch_status, options.anonymous) == (409, 422, "shared")
    assert (options.store_body, options.max_body_bytes, options.using) == (True, 1048576, None)


def test_a_leased_key_is_kept_for_a_month(settings: Any) -> None:
    """Longer than gateways remember its derived keys. A `ttl` that is given anywhere wins."""
    leased = Idempotency(lease=60)
    assert (resolve(leased).ttl_seconds, resolve(LEASED).ttl_seconds) == (3_024_000.0, 3_024_000.0)
    assert resolve(leased, Idempotency(ttl=120)).ttl_seconds == 120.0
    settings.IDEMPOTENCY = {"TTL": 3600}
    assert (resolve(leased).ttl_seconds, resolve(LEASED).ttl_seconds) == (3600.0, 3600.0)
    settings.IDEMPOTENCY = {"LEASE": 60, "RECONCILE": len}
    assert resolve(LEASED).ttl_seconds == 3_024_000.0


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
        ({"on_abandoned": "hold"}, "on_abandoned='hold' applies to leased mode only. Pass lease="),
        ({"reconcile": len}, "applies to leased mode only"),
        ({"in_progress_status": 202}, "in_progress_status=202 applies to leased mode only"),
        ({"lease": 60, "ttl": 60}, "ttl=60 and lease=60: ttl must exceed lease"),
        ({"lease": 60, "reconcile": len}, "needs operation=, because a key stores the name of its operation, by which"),
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
    assert resolve().policy is None
    leased = resolve(Idempotency(lease=60, operation="pay"))
    assert (leased.in_progress_status, leased.on_abandoned, leased.lease_seconds) == (202, "hold", 60.0)


def test_the_default_repeats_only_what_can_be_recognized() -> None:
    """A project opts into more, or into less."""
    assert resolve(Idempotency(lease=60)).policy == "retry-keyed"
    assert resolve(Idempotency(lease=60, on_abandoned="retry")).policy == "retry"
    assert get_settings().derived_keys_last == timedelta(hours=23)


# --- settings


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "must be a dict"),
        ({"HEADERS": "x"}, "unknown IDEMPOTENCY setting 'HEADERS'. Did you mean 'HEADER'?"),
        ({"HEADER": 5}, "IDEMPOTENCY['HEADER']=5: must be of type str."),
        ({"CREDENTIAL_HEADERS": "X-Key"}, "IDEMPOTENCY['CREDENTIAL_HEADERS']='X-Key': must be a list or a tuple."),
        (
            {"KEY_VALIDATOR": "nowhere.at_all"},
            "IDEMPOTENCY['KEY_VALIDATOR']='nowhere.at_all' cannot be imported: No module named 'nowhere'.",
        ),
        ({"ERROR_RESPONSE": 5}, "must be a callable or, in the settings, its dotted path."),
        ({"TTL": 0}, "IDEMPOTENCY['TTL']=0: must be a timedelta or a number of seconds: at least 1"),
        ({"ENCRYPTION_KEYS": OLD}, "IDEMPOTENCY['ENCRYPTION_KEYS']: must be a list of at least one Fernet key."),
        ({"ENCRYPTION_KEYS": []}, "at least one Fernet key. To switch encryption off, leave the setting out."),
        (
            {"ENCRYPTION_KEYS": [OLD, "s3cret"]},
            "IDEMPOTENCY['ENCRYPTION_KEYS']: entry 2 is not a Fernet key. Generate one with",
        ),
        ({"ENCRYPTION_KEYS": [OLD.encode()]}, "IDEMPOTENCY['ENCRYPTION_KEYS']: entry 1 is not a Fernet key."),
        ({"ENCRYPTION_KEYS": [None]}, "IDEMPOTENCY['ENCRYPTION_KEYS']: entry 1 is not a Fernet key."),
        ({"HARMLESS_DECORATORS": "shop.traced"}, "must be a list or a tuple."),
        ({"NAMESPACE": None}, "IDEMPOTENCY['NAMESPACE']=None: must be of type str."),
        ({"DOCS_URL": 5}, "IDEMPOTENCY['DOCS_URL']=5: must be of type str."),
        ({"RUNBOOK_URL": None}, "the IDEMPOTENCY setting 'RUNBOOK_URL' no longer exists. Extend the admin's template"),
        ({"require_quoted_key": True}, "'REQUIRE_QUOTED_KEY' no longer exists. Set KEY to a function that refuses"),
        ({"PUBLISHABLE_KEYS": []}, "'PUBLISHABLE_KEYS' no longer exists. Leave the header of such a key out of CREDE"),
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
    conf = get_settings()
    assert conf.encryption_keys == (OLD,)
    assert OLD not in repr(conf)


def test_without_cryptography_the_command_to_install_it_is_told(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any view runs, and only if there are keys."""
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    resolve()
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    with pytest.raises(IdempotencyConfigurationError, match=r"`cryptography`\. Run: pip install cryptography"):
        resolve()


def asked(*args: Any) -> Any:
    """What the dotted paths below name."""


@pytest.mark.parametrize(
    "name", ["SCOPE", "RECORD", "MAY_REPLAY", "RECONCILE", "KEY", "FINGERPRINT", "KEY_VALIDATOR", "ERROR_RESPONSE"]
)
def test_callables_may_be_dotted_paths(settings: Any, name: str) -> None:
    """As elsewhere in Django's settings: a function that imports a model cannot stand there."""
    settings.IDEMPOTENCY = {name: f"{__name__}.asked"}
    conf = get_settings()
    assert getattr(conf if hasattr(conf, name.lower()) else conf.options, name.lower()) is asked
    settings.IDEMPOTENCY = {name: f"{__name__}.gone"}
    with pytest.raises(IdempotencyConfigurationError, match=rf"IDEMPOTENCY\['{name}'\]='.*gone' cannot be imported"):
        get_settings()
    settings.IDEMPOTENCY = {name: f"{__name__}.OLD"}
    with pytest.raises(IdempotencyConfigurationError, match="must be a"):
        get_settings()


def test_other_texts_are_no_paths(settings: Any) -> None:
    """And a list is as good as a tuple."""
    settings.IDEMPOTENCY = {"FINGERPRINT": "request", "RECORD": "success", "CREDENTIAL_HEADERS": ["X-Key"]}
    conf = get_settings()
    assert (conf.options.fingerprint, conf.options.record) == ("request", "success")
    assert conf.credential_headers == ("X-Key",)


def test_options_can_be_declared_before_django_is_configured() -> None:
    """In a settings module, for example: no mode is imported until options are resolved."""
    source = "from django_idempotency import Idempotency; print(Idempotency(ttl=60).given())"
    place = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    told = subprocess.run([sys.executable, "-c", source], env=place, capture_output=True, text=True, check=True)
    assert told.stdout == "{'ttl': 60}\n"
