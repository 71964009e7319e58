"""From options, settings and defaults to one set of options."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency.engine.conf import (
    Idempotency,
    resolve,
)
from django_idempotency.exceptions import IdempotencyConfigurationError


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
