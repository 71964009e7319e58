"""Options and settings of keys outside the database: what fits, and one clear error for what does not."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency.engine.conf import Idempotency, get_settings, resolve
from django_idempotency.exceptions import IdempotencyConfigurationError
from tests.backends import MEMORY

FORM = (
    'IDEMPOTENCY[\'BACKENDS\']: must be a dict from names to backends, such as {"events": {"BACKEND": '
    '"django_idempotency.backends.redis.RedisBackend", "OPTIONS": {"url": "redis://localhost"}}}.'
)


@pytest.fixture(autouse=True)
def _configured(settings: Any) -> None:
    settings.IDEMPOTENCY = {"BACKENDS": {"events": MEMORY}}


def test_the_defaults_with_a_backend() -> None:
    """A day, and the one policy there is. What the project set for its database is not applied."""
    options = resolve(Idempotency(backend="events", lease=30))
    assert (options.ttl_seconds, options.on_abandoned, options.outlived_by_gateways) == (86400, "retry", False)


def test_settings_that_do_not_fit_are_not_applied(settings: Any) -> None:
    """They are about the project's endpoints in the database. Those that fit are."""
    settings.IDEMPOTENCY |= {
        "ON_ABANDONED": "hold",
        "USING": "other",
        "IN_PROGRESS_STATUS": 202,
        "OBSERVE": True,
        "RECONCILE": print,
        "LEASE": 7,
        "TTL": 60,
        "WAIT": 2,
    }
    options = resolve(Idempotency(backend="events", operation="publish"))
    assert (options.on_abandoned, options.using, options.in_progress_status) == ("retry", None, 409)
    assert (options.observe, options.reconcile) == (False, None)
    assert (options.lease_seconds, options.ttl_seconds, options.wait_seconds) == (7, 60, 2)


NO_TABLE = "cannot be combined with backend=, whose keys are not in the table. Leave {} out."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lease": None}, "backend='events' needs lease="),
        ({"on_abandoned": "hold"}, f"on_abandoned='hold' {NO_TABLE}"),
        ({"on_abandoned": "retry-keyed"}, f"on_abandoned='retry-keyed' {NO_TABLE}"),
        ({"reconcile": print, "operation": "o"}, f"reconcile=<built-in function print> {NO_TABLE}"),
        ({"observe": True}, f"observe=True {NO_TABLE}"),
        ({"using": "default"}, f"using='default' {NO_TABLE}"),
        ({"in_progress_status": 202}, f"in_progress_status=202 {NO_TABLE}"),
        ({"backend": "evnets"}, "backend='evnets': IDEMPOTENCY['BACKENDS'] has no such name. Known are: 'events'."),
        ({"ttl": 20}, "ttl=20 and lease=30: ttl must exceed lease"),
        ({"backend": ""}, "backend='': must be a non-empty string."),
    ],
)
def test_an_option_that_cannot_work_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(IdempotencyConfigurationError) as caught:
        resolve(Idempotency(**{"backend": "events", "lease": 30, **options}))
    assert message.format(*options) in str(caught.value)


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ({"BACKEND": "shop.Nowhere"}, "'shop.Nowhere' cannot be imported: No module named 'shop'."),
        ({"BACKEND": "collections.OrderedDict"}, "'collections.OrderedDict' is not a subclass of KeyValueBackend."),
        ({"BACKEND": "builtins.print"}, "'builtins.print' is not a subclass of KeyValueBackend."),
        ({**MEMORY, "OPTIONS": {"url": "redis://"}}, f"OPTIONS do not fit {MEMORY['BACKEND']!r}: "),
        (
            {"BACKEND": "django_idempotency.backends.redis.RedisBackend", "OPTIONS": {"url": "localhost"}},
            "OPTIONS do not fit 'django_idempotency.backends.redis.RedisBackend': Redis URL must specify",
        ),
    ],
)
def test_a_backend_that_cannot_be_made_is_named(backend: Any, message: str, settings: Any) -> None:
    """When its options are applied, before any request."""
    settings.IDEMPOTENCY = {"BACKENDS": {"events": backend}}
    with pytest.raises(IdempotencyConfigurationError) as caught:
        resolve(Idempotency(backend="events", lease=30))
    assert str(caught.value).startswith(f"IDEMPOTENCY['BACKENDS']['events']: {message}")


@pytest.mark.parametrize("backends", [5, {"events": "redis"}, {"events": {}}, {"events": {**MEMORY, "URL": "x"}}])
def test_an_impossible_setting_is_named_without_its_value(backends: Any, settings: Any) -> None:
    """An address can hold a password."""
    settings.IDEMPOTENCY = {"BACKENDS": backends}
    with pytest.raises(IdempotencyConfigurationError) as caught:
        get_settings()
    assert str(caught.value) == FORM


def test_no_backend_is_everybodys(settings: Any) -> None:
    """A view that writes an order must not get it by the settings."""
    settings.IDEMPOTENCY |= {"BACKEND": "events"}
    with pytest.raises(IdempotencyConfigurationError) as caught:
        get_settings()
    assert str(caught.value) == (
        "IDEMPOTENCY['BACKEND']='events': a view that writes to the database would get its keys outside of it, too, "
        "and would write twice. Pass backend= to each endpoint that writes nothing."
    )
