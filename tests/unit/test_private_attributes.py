"""The attributes of other packages that aren't documented: each is listed, and each is still there."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from asgiref.sync import AsyncToSync
from django.db import connection

from django_idempotency.engine.execution.bridge import without_bridge_above

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "django_idempotency"
PLACES = {
    "asgiref.sync": ["executors"],
    "django.contrib.admin.sites": ["_registry"],
    "django.contrib.sessions.backends.base": ["_session_cache"],
    "django.core.handlers.wsgi": ["_pos", "_stream"],
    "django.db.backends.base.base": [
        *("atomic_blocks", "closed_in_transaction", "commit_on_exit", "in_atomic_block", "needs_rollback"),
        *("run_commit_hooks_on_set_autocommit_on", "run_on_commit", "savepoint_ids", "_cursor", "_prepare_cursor"),
        *("_thread_sharing_lock", "errors_occurred"),
    ],
    "django.db.backends.utils": ["_execute", "_execute_with_wrappers"],
    "django.db.transaction": ["_from_testcase", "_non_atomic_requests"],
    "django.http.request": ["_body", "_post"],
    "django.middleware.csrf": ["_dont_enforce_csrf_checks", "csrf_processing_done"],
    "django.utils.decorators": ["_multi_decorate", "_pre_process_request"],
    "ninja.operation": ["_result_to_response"],
    "psycopg.connection": ["lock", "pgconn"],
    "rest_framework.request": ["_data", "_files", "_full_data", "_request", "_stream"],
}
"""By the module that defines them. Those of Django Ninja's decorators are looked for by the tests in its folder."""
ELSEWHERE = {"_ninja_contribute_to_operation", "_ninja_operation"}
DOCUMENTED = {"_base_manager", "_default_manager", "_meta", "_state"}
OTHER_STRINGS = {"_change", "_changelist", "_export", "_io", "_seconds", "_written"}
"""Parts of names, and a module."""


def private_names() -> Iterator[str]:
    """What the package reads from objects of others, and the strings by which it does."""
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            own.add(node.attr)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr not in own:
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_list_is_complete() -> None:
    """tests/private_attributes.md names each of them, and so does this module."""
    name = re.compile(r"_[a-z]+(_[a-z]+)*")
    of_ours = re.compile(r"_(idempotency|django_idempotency)\b|_idempotency_")
    known = {each for names in PLACES.values() for each in names} | ELSEWHERE
    used = {each for each in private_names() if name.fullmatch(each) and not of_ours.match(each)}
    listed = (ROOT / "tests/private_attributes.md").read_text()
    assert used - known - DOCUMENTED - OTHER_STRINGS == set()
    assert {each for each in known if not re.search(rf"\b{each}`", listed)} == set()


@pytest.mark.parametrize("module", PLACES)
def test_each_is_still_there(module: str) -> None:
    if module.partition(".")[0] in ("ninja", "psycopg", "rest_framework"):
        pytest.importorskip(module.partition(".")[0])
    source = inspect.getsource(import_module(module))
    gone = [name for name in PLACES[module] if not re.search(rf"\b{name}\b", source)]
    assert gone == [], f"{module} has no {gone} any more: see tests/private_attributes.md"


def test_a_connection_has_those_of_its_transaction() -> None:
    """In the source, they could belong to another class."""
    names = PLACES["django.db.backends.base.base"]
    assert [name for name in names if not hasattr(connection, name)] == []


def test_without_asgirefs_attribute_the_work_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asgiref's own, and may be renamed. Only tasks that outlive their work are then not refused."""
    monkeypatch.delattr(AsyncToSync, "executors")
    assert without_bridge_above(lambda: "done") == "done"
