"""The frameworks beside plain Django. Each is loaded when the project itself has imported the framework.

A module of ours that knows a framework has three functions:

* `view_call(request, view, args, kwargs, options)`: the `ViewCall` of a protected view, if `request` is one of this
  framework, else None.
* `declared(callback)`: method, view and `Declaration` of what a URL's callback answers, if it is one of this framework
  and no class, else None.
* `response(returned, declaration)`: the response that `reconcile` has returned without a request, if it is one of this
  framework, else None.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

MODULES = {
    "ninja": "django_idempotency.ninja.operations",
    "rest_framework": "django_idempotency.rest_framework.adapter",
}
"""By name, because the engine imports nothing that stands above it."""


def in_use() -> list[Any]:
    """The modules for the frameworks that the project has imported."""
    return [import_module(ours) for name, ours in MODULES.items() if name in sys.modules]
