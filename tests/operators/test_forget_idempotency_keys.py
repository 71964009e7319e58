"""`manage.py forget_idempotency_keys`: whose keys, what it prints, and its exit status."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_idempotency.maintenance import scope_of_user
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db


def forgotten(*args: str) -> tuple[int, str]:
    """The exit status, and what was printed; an error's text stands at the end."""
    out = io.StringIO()
    try:
        call_command("forget_idempotency_keys", *args, stdout=out)
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()


@pytest.fixture(autouse=True)
def _keys() -> None:
    for scope in ("a", "b"):
        create_key("k1", scope=scope)
        create_key("k2", scope=scope)
        create_key("k2", scope=scope, operation="POST refund/")


@pytest.mark.parametrize(
    ("options", "count"), [([], 3), (["--key=k2"], 2), (["--key=k2", "--operation=POST refund/"], 1), (["--key=no"], 0)]
)
def test_nothing_is_deleted_without_apply(options: list[str], count: int, caplog: pytest.LogCaptureFixture) -> None:
    """With it the same keys are, and the log has their number."""
    caplog.set_level(logging.INFO, "django_idempotency")
    told = "1 key" if count == 1 else f"{count} keys"
    assert forgotten("--scope=a", *options) == (0, f"Would forget {told} of a. Add --apply to do it.\n")
    assert (IdempotencyKey.objects.count(), caplog.messages) == (6, [])
    assert forgotten("--scope=a", *options, "--apply") == (0, f"Forgot {told} of a.\n")
    assert IdempotencyKey.objects.filter(scope="b").count() == 3
    assert caplog.messages == [f"Idempotency keys of default: {count} forgotten, 0 kept."]


@pytest.mark.parametrize("apply", [[], ["--apply"]])
def test_what_needs_attention_is_kept(apply: list[str]) -> None:
    """Exit status 3: a person decides about these keys first."""
    create_key("doubt", scope="a", in_doubt=["charge"])
    create_key("running", scope="a", status="in_progress")
    status, text = forgotten("--scope=a", *apply)
    assert (status, "orget 3 keys" in text or "Forgot 3 keys" in text) == (3, True)
    assert text.endswith("Kept, because they are in progress, in doubt or half done: 2 keys.")
    left = set(IdempotencyKey.objects.filter(scope="a").values_list("key", flat=True))
    assert left == {"doubt", "running"} | (set() if apply else {"k1", "k2"})


def test_a_user_has_a_name() -> None:
    user = UserFactory(username="ada")
    create_key(scope=scope_of_user(user))
    assert forgotten("--user=ada", "--apply") == (0, f"Forgot 1 key of {scope_of_user(user)}.\n")
    assert forgotten("--user=bob", "--apply") == (1, "There is no user 'bob'.")


def test_a_user_under_a_scope_of_the_project_is_refused(settings: Any) -> None:
    """It would find nothing, and look as if there was nothing. The scope itself finds the keys."""
    UserFactory(username="ada")
    create_key(scope="acme:user:auth.User:1")
    settings.IDEMPOTENCY = {"SCOPE": "tests.callers.caller_urls.tenant_and_caller"}
    status, text = forgotten("--user=ada", "--apply")
    assert (status, text.startswith("--user='ada': IDEMPOTENCY['SCOPE'] is <function tenant_and_caller at ")) == (
        1,
        True,
    )
    assert text.endswith(
        "Pass --scope with what that function returns for the user, or with the scope that the admin shows."
    )
    assert forgotten("--scope=acme:user:auth.User:1", "--apply") == (0, "Forgot 1 key of acme:user:auth.User:1.\n")


def test_an_operation_alone_is_refused() -> None:
    """It would look as if only its keys were forgotten."""
    assert forgotten("--scope=a", "--operation=POST refund/") == (1, "--operation needs --key.")
