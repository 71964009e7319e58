"""Celery's prefork pool, whose children are killed: the parent puts the task back, and another child works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.extra.projects.harness import Project, Site, dies
from tests.servers import eventually, fake_gateway, process

NEEDS = ["celery"]
PROJECT = Project("celery_shop", ready="/orders/")
WORKER = "-m celery -A tests.extra.projects.celery_shop worker --pool prefork --concurrency 2"
QUIET = "--without-gossip --without-mingle --without-heartbeat"


@pytest.fixture(scope="module", autouse=True)
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, httpx.Client]]:
    with fake_gateway() as gateway, fake_gateway("--without-keys") as old:
        PROJECT.environment |= {"GATEWAY": str(gateway.base_url), "OLD_GATEWAY": str(old.base_url)}
        PROJECT.environment["CELERY_FOLDER"] = str(folder := tmp_path_factory.mktemp("celery"))
        Path(folder, "queue").mkdir()
        yield {"gateway with keys": gateway, "gateway without keys": old}


@pytest.fixture(scope="module", autouse=True)
def worker(site: Site) -> Iterator[None]:
    with process(sys.executable, *WORKER.split(), *QUIET.split(), env=site.project.variables(protected=site.protected)):
        yield


def order(site: Site, key: str, gateway: str, died: str, fault: str = "") -> httpx.Response:
    with site.client() as client:
        task = {"order": key, "gateway": gateway, "fault": died}
        return client.post("/orders/", json=task, headers={"Idempotency-Key": key, "X-Fault": fault})


def orders(site: Site, key: str) -> int:
    return site.project.count("shopapp_order", "reference = %s", key)


def ended(site: Site, key: str, number: int = 1) -> None:
    """So many tasks have ended in a child that lived on."""
    what = f"{number} tasks to end"
    eventually(what, lambda: site.project.count("shopapp_ledger", "entry LIKE %s", f"{key}%") == number)


@pytest.mark.parametrize("moment", ["before the COMMIT", "after the COMMIT"])
def test_a_killed_child(site: Site, moment: str, key: str) -> None:
    """Without protection the task writes in no transaction, so its first order stays."""
    assert order(site, key, "", moment).status_code == 202
    ended(site, key)
    site.counted(f"orders of a child that died {moment}", orders(site, key), 1, 2)


@pytest.mark.parametrize(("gateway", "placed"), [("gateway with keys", 1), ("gateway without keys", 0)])
def test_a_child_that_is_killed_after_the_charge(
    site: Site, gateways: dict[str, Any], gateway: str, placed: int, key: str
) -> None:
    """A gateway that knows no keys is not asked again: a person finds out."""
    assert order(site, key, gateway, "after the charge").status_code == 202
    ended(site, key)
    charges = gateways[gateway].get("/charges", params={"reference": key}).json()["charges"]
    site.counted(f"charges at the {gateway}", len(charges), 1, 2)
    assert orders(site, key) == (placed if site.protected else 1)


def test_a_web_server_that_dies_after_its_commit(site: Site, key: str) -> None:
    """The task is on its way, and the client sends its request again."""
    dies(lambda: order(site, key, "", "", fault="kill after COMMIT"))
    assert order(site, key, "", "").status_code == 202
    ended(site, key, 1 if site.protected else 2)
    site.counted("orders after a lost answer", orders(site, key), 1, 2)
