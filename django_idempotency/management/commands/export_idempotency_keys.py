from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from ...engine.stores import alias_for, store_for
from ...engine.stores.journal import steps_of
from ...engine.stores.sealing import unseal_response, unsealed
from ...exceptions import NotDecryptable
from ...maintenance.erasure import of_scope
from ...models import IdempotencyKey
from ..base import IdempotencyCommand, counted
from ..schemas import in_schema
from .forget_idempotency_keys import add_caller, scope_from

KEY = (
    *("key", "operation", "scope", "status", "resource_type", "resource_id", "worker", "attempt"),
    *("created_at", "updated_at", "completed_at", "expires_at"),
)
STEP = ("name", "kind", "attempt", "started_at", "finished_at")
LOST = "(cannot be decrypted)"


class Command(IdempotencyCommand):
    help = (
        "Write everything that is stored about one caller to a file, decrypted: a line of JSON for each key that "
        "forget_idempotency_keys would delete or keep. Nothing is changed. The exit status is 0 if the file was "
        "written, and 1 after an error."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_caller(parser, "Export")
        parser.add_argument("--output", type=Path, metavar="FILE", required=True, help="Write to this new file.")
        parser.add_argument("--database", help="Database alias; default: the write alias.")
        parser.add_argument("--schema", help="A tenant's PostgreSQL schema; default: the connection's own.")

    def handle(self, *args: Any, **options: Any) -> None:
        alias, count = store_for(alias_for(options["database"])).alias, 0
        with in_schema(alias, options["schema"]):
            scope = scope_from(options)
            keys = IdempotencyKey.objects.using(alias).filter(of_scope(scope)).order_by("pk")
            with options["output"].open("x", encoding="utf-8") as file:
                for row in keys.iterator():
                    file.write(json.dumps(_stored(alias, row), cls=DjangoJSONEncoder) + "\n")
                    count += 1
        self.say(f"Wrote {counted(count)} of {scope} to {options['output']}.")


def _stored(alias: str, row: IdempotencyKey) -> dict[str, Any]:
    """Everything in a key's row and in its steps, except for hashes and counts."""
    steps = [
        {name: getattr(step, name) for name in STEP}
        | {name: unsealed(row, name, getattr(step, name), step.name, instead=LOST) for name in ("result", "error")}
        for step in steps_of(alias, row).order_by("pk")
    ]
    texts = {name: unsealed(row, name, getattr(row, name), instead=LOST) for name in ("last_error", "decisions")}
    about = {name: getattr(row, name) for name in KEY}
    return about | texts | {"response": _response(row), "steps": steps}


def _response(row: IdempotencyKey) -> Any:
    """The stored response. A body that is not UTF-8 is written in Base64."""
    if row.status_code is None:
        return None
    try:
        snapshot = unseal_response(row, row)
    except NotDecryptable:
        return LOST
    told: dict[str, Any] = {"status": snapshot.status_code, "headers": snapshot.headers}
    if snapshot.body is None:
        return told
    try:
        return told | {"body": snapshot.body.decode()}
    except UnicodeDecodeError:
        return told | {"body_base64": b64encode(snapshot.body).decode()}
