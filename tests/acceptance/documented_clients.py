"""The clients that docs/clients.md offers: in this process, in Node, and in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers import DEADLINE

DOCS = Path(__file__).resolve().parents[2] / "docs"
NODE = shutil.which("node")
TOLD = "(error) => error instanceof Refused ? `refused ${error.message.slice(0, 3)}` : error.constructor.name"
"""What JavaScript's tests are told of an error."""
Place = Callable[..., Any]


def snippet(language: str) -> str:
    return (DOCS / {"python": "client.py", "js": "client.js"}[language]).read_text()


def python_client() -> dict[str, Any]:
    documented: dict[str, Any] = {}
    exec(compile(snippet("python"), "docs/client.py", "exec"), documented)
    return documented


@contextmanager
def python_outbox(path: Path) -> Iterator[Any]:
    """An outbox on this file. Its connection is closed in the end: Python 3.13 warns of an open one."""
    outbox = python_client()["Outbox"](path)
    with closing(outbox.file):
        yield outbox


def in_python(url: str, key: str, order: Any, path: str = "/orders/", give_up_after: float = DEADLINE) -> Any:
    documented = python_client()
    with httpx.Client(base_url=url, timeout=DEADLINE) as client:
        try:
            return documented["place_order"](client, key, order, path, give_up_after)
        except documented["Refused"] as error:
            return f"refused {error.args[0]}"
        except (documented["NotConfirmed"], documented["Processed"]) as error:
            return type(error).__name__


def in_javascript(url: str, key: str, order: Any, path: str = "/orders/", give_up_after: float = DEADLINE) -> Any:
    place = f"placeOrder('{url}{path}', '{key}', {json.dumps(order)}, {give_up_after})"
    return node(f"{place}.catch({TOLD})")


def node(expression: str) -> Any:
    """What the promise of this expression comes to."""
    assert NODE is not None
    script = f"{snippet('js')}\n({expression}).then((value) => console.log(JSON.stringify(value)))"
    result = subprocess.run([NODE, "-e", script], capture_output=True, text=True, timeout=2 * DEADLINE, check=True)
    return json.loads(result.stdout)


@pytest.fixture(params=[in_python, in_javascript], ids=["Python", "JavaScript"])
def place_order(request: pytest.FixtureRequest) -> Place:
    if request.param is in_javascript and NODE is None:
        pytest.skip("Node is not on this machine")
    return request.param  # type: ignore[no-any-return]
