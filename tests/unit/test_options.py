"""Options of one protected endpoint, each by itself."""

from __future__ import annotations

import pickle
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from django_idempotency.engine.conf import (
    Fingerprint,
    Idempotency,
    as_options,
    is_final,
)
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


@pytest.mark.parametrize(
    "given",
    [
        *({"fields": v} for v in ("amount", (), ("",), ("a..b",), (".a",), ("a.",), (1,), {"a"})),
        *({"exclude": v} for v in ("trace_id", None, ("",), (b"a",))),
        *({"query": v} for v in (None, "a", 2)),
    ],
)
def test_an_impossible_fingerprint_is_refused(given: dict[str, Any]) -> None:
    """With the argument, the value and what to give. One name without a comma is no tuple."""
    ((name, value),) = given.items()
    with pytest.raises(IdempotencyConfigurationError, match=r"give a tuple of names|give True or False") as caught:
        Fingerprint(**given)
    assert str(caught.value).startswith(f"Fingerprint({name}={value!r}): ")


def test_reconcile_gets_the_operation_alone() -> None:
    """A callable of version 0.1, with the request before the operation, is refused where it is declared."""
    with pytest.raises(IdempotencyConfigurationError, match=r"called as reconcile\(operation\).*operation\.request"):
        Idempotency(reconcile=lambda request, operation: None)  # type: ignore[arg-type, misc]
    assert Idempotency(reconcile=lambda operation: None).given().keys() == {"reconcile"}
    assert Idempotency(reconcile=max).reconcile is max  # it shows no signature


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


def test_the_default_rule_of_what_is_final() -> None:
    """Below 500, and not one of those that a retry may change."""
    statuses = [s for s in range(200, 600) if not is_final(type("Response", (), {"status_code": s}))]
    assert statuses == [401, 403, 408, 423, 425, 429, *range(500, 600)]


def test_ttl_and_lease_are_refused_where_they_are_written() -> None:
    """Not only when a view resolves its options."""
    with pytest.raises(IdempotencyConfigurationError, match="ttl=30 and lease=60: ttl must exceed lease"):
        Idempotency(lease=60, ttl=30)
