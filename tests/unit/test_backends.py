"""Options and settings of keys outside the database: what fits, and one clear error for what does not."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency.engine.conf import Idempotency, get_settings, resolve
from django_idempotency.exceptions import IdempotencyConfigurationError
from tests.backends import MEMORY

NO_TABLE = "cannot be combined with backend=, whose keys are not in the table. Leave"
PLACE = "IDEMPOTENCY['BACKENDS']['events']"
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lease": None},
            "idempotency option backend='events' needs lease=, after which the claim of a dead worker expires. "
            "Pass lease=30, for example: longer than the view takes.",
        ),
        ({"on_abandoned": "hold"}, f"idempotency option on_abandoned='hold' {NO_TABLE} on_abandoned out."),
        (
            {"on_abandoned": "retry-keyed"},
            f"idempotency option on_abandoned='retry-keyed' {NO_TABLE} on_abandoned out.",
        ),
        (
            {"reconcile": print, "operation": "o"},
            f"idempotency option reconcile=<built-in function print> {NO_TABLE} reconcile out.",
        ),
        ({"observe": True}, f"idempotency option observe=True {NO_TABLE} observe out."),
        ({"using": "default"}, f"idempotency option using='default' {NO_TABLE} using out."),
        ({"in_progress_status": 202}, f"idempotency option in_progress_status=202 {NO_TABLE} in_progress_status out."),
        (
            {"backend": "evnets"},
            "idempotency option backend='evnets': IDEMPOTENCY['BACKENDS'] has no such name. Known are: 'events'.",
        ),
        (
            {"ttl": 20},
            "idempotency options ttl=20 and lease=30: ttl must exceed lease, or the key could be forgotten while the "
            "view still runs.",
        ),
        ({"backend": ""}, "idempotency option backend='': must be a non-empty string."),
    ],
)
def test_an_option_that_cannot_work_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(IdempotencyConfigurationError) as caught:
        resolve(Idempotency(**{"backend": "events", "lease": 30, **options}))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (
            {"BACKEND": "shop.Nowhere"},
            f"{PLACE}: 'shop.Nowhere' cannot be imported: No module named 'shop'.",
        ),
        (
            {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            f"{PLACE}: 'django.core.cache.backends.locmem.LocMemCache' is not a subclass of KeyValueBackend.",
        ),
        ({"BACKEND": "builtins.print"}, f"{PLACE}: 'builtins.print' is not a subclass of KeyValueBackend."),
        (
            {**MEMORY, "OPTIONS": {"url": "redis://"}},
            f"{PLACE}: OPTIONS do not fit {MEMORY['BACKEND']!r}: MemoryBackend.__init__() got an unexpected keyword "
            "argument 'url'.",
        ),
        (
            {"BACKEND": "django_idempotency.backends.redis.RedisBackend", "OPTIONS": {"url": "localhost"}},
            f"{PLACE}: OPTIONS do not fit 'django_idempotency.backends.redis.RedisBackend': Redis URL must specify one "
            "of the following schemes (redis://, rediss://, unix://).",
        ),
    ],
)
def test_a_backend_that_cannot_be_made_is_named(backend: Any, message: str, settings: Any) -> None:
    """When its options are applied, before any request."""
    settings.IDEMPOTENCY = {"BACKENDS": {"events": backend}}
    with pytest.raises(IdempotencyConfigurationError) as caught:
        resolve(Idempotency(backend="events", lease=30))
    assert str(caught.value) == message


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
