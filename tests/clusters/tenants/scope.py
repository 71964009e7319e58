"""The recipe of docs/tenants.md."""

from __future__ import annotations

from typing import Any

from tests.acceptance.pages import blocks

_documented: dict[str, Any] = {}
exec(compile(blocks("docs/tenants.md")["shop/scopes.py"], "docs/tenants.md", "exec"), _documented)
tenant_and_user = _documented["tenant_and_user"]
