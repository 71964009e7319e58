"""The recipe of docs/databases.md."""

from __future__ import annotations

from typing import Any

from tests.acceptance.pages import blocks

_documented: dict[str, Any] = {}
exec(compile(blocks("docs/databases.md")["shop/scopes.py"], "docs/databases.md", "exec"), _documented)
tenant_and_user = _documented["tenant_and_user"]
