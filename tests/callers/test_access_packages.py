"""Permissions that are withdrawn: the checks of other packages come before a replay, or the order is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("django", "rules", "guardian", "braces", "oauth2_provider")


@pytest.fixture(scope="module")
def outcomes() -> Any:
    """What the project of these packages printed."""
    command = [sys.executable, "-W", "error", "-m", "tests.callers.access_packages"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_replay_skips_a_check_that_has_changed_its_mind(package: str, outcomes: Any) -> None:
    """Its decorator and its mixin. In the right order the third answer is 403. In the wrong order the view does not run
    at all."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    found = {(name, order): told for name, all_ in outcomes.items() for order, told in all_.items() if package in name}
    right = {order: outcome for order, outcome in found.items() if order[1].startswith("right")}
    wrong = {order: outcome for order, outcome in found.items() if order[1].startswith("wrong")}
    assert (len(right), len(wrong)) == ((3, 2) if package == "braces" else (8, 9))
    assert [order for order, outcome in right.items() if outcome != [201, 201, 403]] == []
    assert [order for order, outcome in wrong.items() if " above " not in outcome] == []


@pytest.mark.parametrize(
    ("way", "user"),
    [
        ("REST framework", ""),
        ("REST framework, with a user", "for:user:auth.User:N+"),
        ("middleware", "for:user:auth.User:N+"),
        ("a middleware that keeps no token", "for:user:auth.User:N+"),
        ("both middlewares", "for:user:auth.User:N+"),
    ],
)
def test_a_client_that_has_renewed_its_token_is_the_same_caller(outcomes: Any, way: str, user: str) -> None:
    """Of django-oauth-toolkit. A token of another application is another caller, with the same user or without one."""
    if "clients" not in outcomes:
        pytest.skip("oauth2_provider or rest_framework is not installed")
    scope = f"{user}application:oauthN_provider.Application:N"
    assert outcomes["clients"][way] == ["false", "true", "false", scope, scope]


@pytest.mark.parametrize("way", ["header", "TAB", "form"])
@pytest.mark.parametrize("check", ["protected_resource", "ProtectedResourceMixin"])
def test_the_owner_of_a_token_is_the_caller_with_the_application(outcomes: Any, check: str, way: str) -> None:
    """Where the toolkit sets `request.resource_owner` and no user. A renewed token is the same caller."""
    if "resources" not in outcomes:
        pytest.skip("oauth2_provider or rest_framework is not installed")
    scope = "for:user:auth.User:N+application:oauthN_provider.Application:N"
    assert outcomes["resources"][f"{check}, {way}"] == ["renewed", "", "", scope]


def test_what_becomes_of_the_toolkits_keys_of_0_4_0(outcomes: Any) -> None:
    """As the table in docs/upgrading.md says: clients keep their scope, and `protected_resource` runs again."""
    if "upgraded" not in outcomes:
        pytest.skip("oauth2_provider or rest_framework is not installed")
    assert outcomes["upgraded"] == {
        "REST framework": 1,
        "REST framework, with a user": 1,
        "a middleware": 1,
        "protected_resource": 2,
        "protected_resource, with the token in the form": 2,
    }
