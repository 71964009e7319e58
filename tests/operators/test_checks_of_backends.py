"""System checks of keys outside the database."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.urls import clear_url_caches, path

from django_idempotency import idempotent
from django_idempotency.backends.memory import MemoryBackend
from django_idempotency.checks import check_project, check_servers, check_urls
from tests.backends import CREDENTIALS, MEMORY, configured, free_port, in_redis, redis_server
from tests.redis_clusters import redis_cluster

pytestmark = pytest.mark.django_db


class Silent(MemoryBackend):
    def check(self) -> Any:
        raise TimeoutError("no answer")


def told(check: Callable[..., list[CheckMessage]]) -> list[tuple[str, str]]:
    """Id and first sentence, of the messages about backends."""
    found = [(message.id or "", message.msg) for message in check(None)]
    about = ("E015", "W010", "W011", "W012", "W013", "W019")
    return [
        (id_.removeprefix("django_idempotency."), msg.partition(". ")[0]) for id_, msg in found if id_[-4:] in about
    ]


def test_e015_a_wrong_entry(settings: Any) -> None:
    """Also of a backend that no view has asked for yet. The server is not asked."""
    settings.IDEMPOTENCY = {"BACKENDS": {"events": {"BACKEND": "shop.Nowhere"}}}
    place = "IDEMPOTENCY['BACKENDS']['events']"
    assert told(check_project) == [("E015", f"{place}: 'shop.Nowhere' cannot be imported: No module named 'shop'.")]
    assert told(check_servers) == []


def test_w019_a_backend_that_does_not_answer(settings: Any) -> None:
    settings.IDEMPOTENCY = {"BACKENDS": {"events": {"BACKEND": f"{__name__}.Silent"}}}
    assert told(check_servers) == [("W019", "backend 'events' does not answer: no answer")]


def test_w010_and_w011_a_redis_that_forgets(settings: Any) -> None:
    """As Debian installs it, and with a cache's eviction."""
    with redis_server("--maxmemory-policy", "allkeys-lru") as (url, _):
        settings.IDEMPOTENCY = {"BACKENDS": {"events": in_redis(url)}}
        assert told(check_servers) == [
            ("W010", "Redis has maxmemory-policy 'allkeys-lru'"),
            ("W011", "Redis has no append-only file"),
        ]


def test_each_primary_of_a_cluster_is_asked(settings: Any) -> None:
    """A key may be on any of them. Two of the three would drop some."""
    durable = ("--appendonly", "yes", "--maxmemory-policy", "noeviction")
    evicting = ("--appendonly", "yes", "--maxmemory-policy", "allkeys-lru")
    with redis_cluster(durable, evicting, evicting) as url:
        entry = {"BACKEND": "tests.redis_clusters.ClusterBackend", "OPTIONS": {"url": url}}
        settings.IDEMPOTENCY = {"BACKENDS": {"events": entry}}
        found = told(check_servers)
    assert [id_ for id_, _ in found] == ["W010", "W010"]
    named = {
        re.fullmatch(r"Redis at (127\.0\.0\.1:\d+) has maxmemory-policy 'allkeys-lru'", msg)[1] for _, msg in found
    }
    assert len(named) == 2
    assert url.removeprefix("redis://") not in named


def test_w019_a_cluster_that_does_not_answer(settings: Any) -> None:
    """`check` without `--database` doesn't ask it."""
    options = {"url": f"redis://127.0.0.1:{free_port()}"}
    entry = {"BACKEND": "tests.redis_clusters.ClusterBackend", "OPTIONS": options}
    settings.IDEMPOTENCY = {"BACKENDS": {"events": entry}}
    assert told(check_project) == []
    assert [id_ for id_, _ in told(check_servers)] == ["W019"]


def test_a_durable_redis_is_silent(settings: Any) -> None:
    settings.IDEMPOTENCY = {"BACKENDS": {"events": configured("redis")}}
    assert told(check_servers) == []


@pytest.mark.parametrize("debug", [True, False])
def test_w012_keys_in_memory_outside_debug(debug: bool, settings: Any) -> None:
    settings.DEBUG = debug
    settings.IDEMPOTENCY = {"BACKENDS": {"events": MEMORY}}
    lost = ("W012", "Keys in the memory of a process are lost with it, and invisible to other processes, where")
    assert [(id_, msg[:88]) for id_, msg in told(check_servers)] == ([] if debug else [(lost[0], lost[1][:88])])


def test_w013_a_table_that_keeps_expired_keys(settings: Any) -> None:
    entry = configured("moto")
    import boto3

    settings.IDEMPOTENCY = {"BACKENDS": {"events": entry}}
    kept = "The table 'keys' has no Time to Live on the attribute 'expires', so it keeps expired keys."
    assert told(check_servers) == [("W013", kept)]
    client = boto3.client("dynamodb", endpoint_url=entry["OPTIONS"]["endpoint_url"], **CREDENTIALS)
    switch = {"TableName": "keys", "TimeToLiveSpecification": {"Enabled": True, "AttributeName": "expires"}}
    client.update_time_to_live(**switch)
    assert told(check_servers) == []
    switch["TimeToLiveSpecification"]["Enabled"] = False  # type: ignore[index]
    client.update_time_to_live(**switch)


def test_nobody_listens(settings: Any) -> None:
    """An address without a server is found by the check, too."""
    settings.IDEMPOTENCY = {"BACKENDS": {"events": in_redis(f"redis://127.0.0.1:{free_port()}")}}
    ((id_, msg),) = told(check_servers)
    assert (id_, msg.startswith("backend 'events' does not answer: Error 111")) == ("W019", True)


def test_leased_views_are_warned_of_charges_and_these_are_not(settings: Any) -> None:
    """W009 and W015 are about derived keys at a gateway. The alias of such a view is not checked either."""
    urls: Any = ModuleType("urls_of_backends")
    urls.urlpatterns = [path("publish", idempotent(backend="events", lease=30)(lambda request: None))]
    settings.ROOT_URLCONF = urls
    settings.IDEMPOTENCY = {"BACKENDS": {"events": MEMORY}}
    assert [message.id for message in check_urls()] == []
    urls.urlpatterns = [path("publish", idempotent(lease=30, ttl=60)(lambda request: None))]
    clear_url_caches()
    assert [message.id for message in check_urls()] == ["django_idempotency.W009", "django_idempotency.W015"]
