"""`manage.py export_idempotency_keys`: what is stored about one caller, for the person who asks for it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_idempotency import run_once
from django_idempotency.engine.protocol.outcomes import Snapshot
from django_idempotency.maintenance import close_with
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.at_rest import NEW, OLD

pytestmark = pytest.mark.django_db


def exported(path: Path, *arguments: str) -> list[Any]:
    out = io.StringIO()
    call_command("export_idempotency_keys", f"--output={path}", *arguments, stdout=out)
    lines = path.read_text().splitlines()
    assert out.getvalue() == f"Wrote {len(lines)} key{'' if len(lines) == 1 else 's'} of user:1 to {path}.\n"
    return [json.loads(line) for line in lines]


def test_it_holds_what_is_stored_about_one_caller_and_nothing_about_another(tmp_path: Path, settings: Any) -> None:
    """Decrypted: responses, steps, errors and decisions. Nothing is changed."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    run_once(lambda: {"card": "4242"}, scope="user:1", key="done", operation="o")
    run_once(lambda: {"card": "1111"}, scope="user:2", key="theirs", operation="o")
    create_key("paid", scope="user:1", steps={"charge": {"id": "ch_1"}}, in_doubt=["mail"])
    before = list(IdempotencyKey.objects.order_by("pk").values())
    done, paid = exported(tmp_path / "of 1", "--scope=user:1")
    assert (done["key"], done["response"]["body"], done["steps"]) == ("done", '{"value": {"card": "4242"}}', [])
    kept = {step["name"]: step["result"] for step in paid["steps"]}
    assert kept == {"charge": '{"value": {"id": "ch_1"}}', "mail": None}
    assert paid["response"] is None
    assert list(IdempotencyKey.objects.order_by("pk").values()) == before


def test_what_cannot_be_decrypted_says_so(tmp_path: Path, settings: Any) -> None:
    """And hides nothing else."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    run_once(lambda: 1, scope="user:1", key="done", operation="o")
    create_key("paid", scope="user:1", steps={"charge": "ch_1"})
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
    done, paid = exported(tmp_path / "of 1", "--scope=user:1")
    assert done["response"] == paid["steps"][0]["result"] == "(cannot be decrypted)"


@pytest.mark.parametrize(("body", "told"), [(b"\xff", {"body_base64": "/w=="}), (None, {})])
def test_a_body_that_is_no_text(tmp_path: Path, body: bytes | None, told: dict[str, str]) -> None:
    """A file, or a response whose body was not stored."""
    row = create_key("k", scope="user:1", status="failed")
    close_with(row, Snapshot(status_code=200, headers=(("A", "b"),), body=body))
    (key,) = exported(tmp_path / "of 1", "--scope=user:1")
    assert key["response"] == {"status": 200, "headers": [["A", "b"]], **told}
    assert json.loads(key["decisions"])[0]["action"] == "answer"


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    """And nothing is written for a user who isn't there."""
    (tmp_path / "there").write_text("mine")
    with pytest.raises(CommandError, match="File exists"):
        exported(tmp_path / "there", "--scope=user:1")
    assert (tmp_path / "there").read_text() == "mine"
    with pytest.raises(CommandError, match="There is no user 'nobody'"):
        exported(tmp_path / "new", "--user=nobody")
    assert not (tmp_path / "new").exists()
