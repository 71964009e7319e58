"""`call_command(…, id=…)`: an option that may be repeated takes one value or a list, and no list by accident."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_idempotency.maintenance import recover_idempotency_keys
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key

pytestmark = pytest.mark.django_db


def called(name: str, **options: Any) -> tuple[int, str, str]:
    """Exit status, what was printed, and the error."""
    out = io.StringIO()
    try:
        call_command(name, stdout=out, stderr=out, **options)
    except CommandError as error:
        return error.returncode, out.getvalue(), str(error)
    return 0, out.getvalue(), ""


def close(**options: Any) -> tuple[int, str, str]:
    return called("resolve_idempotency_keys", close=410, apply=True, by="bob", reason="TICKET-1", **options)


class TestResolve:
    @pytest.fixture(autouse=True)
    def _keys(self) -> None:
        self.keys = [create_key(f"order-{number}", in_doubt=["charge"]) for number in range(3)]

    def test_one_number_is_not_read_digit_by_digit(self) -> None:
        """Else "59" would be the rows 5 and 9."""
        for key, number in zip(self.keys, (-5, -9, 1_000_059), strict=True):
            key.steps.update(key_id=number)
            IdempotencyKey.objects.filter(pk=key.pk).update(id=number)
        assert close(id="1000059")[1].endswith("Decided about 1 key.\n")
        assert [key.key for key in IdempotencyKey.objects.filter(status="completed")] == ["order-2"]

    @pytest.mark.parametrize("name", ["operation", "state", "id"])
    @pytest.mark.parametrize("others", [{}, {"older_than": 0}])
    def test_an_empty_list_selects_nothing(self, name: str, others: dict[str, Any]) -> None:
        """A script has found no key: this must not be a decision about all keys."""
        assert close(**{name: []}, **others)[::2] == (3, "No key is selected.")
        assert not IdempotencyKey.objects.filter(status="completed").exists()


class TestRecover:
    @pytest.fixture(autouse=True)
    def _key(self) -> None:
        create_key(in_doubt=["charge"])

    def test_one_operation_needs_no_list(self) -> None:
        """Letter by letter, no key would need attention."""
        status, text, _ = called("recover_idempotency_keys", operation="POST orders/", older_than=0, dry_run=True)
        assert (status, text.splitlines()[-1]) == (3, "Need attention: 1.")

    def test_the_function_refuses_a_text(self) -> None:
        with pytest.raises(ValueError, match="give a list of names") as raised:
            recover_idempotency_keys(operations="POST orders/", older_than=0)
        assert str(raised.value) == "operations='POST orders/': give a list of names, ['POST orders/']."


@pytest.mark.parametrize("age", [-1, float("-inf"), float("nan")])
def test_an_impossible_age_is_refused(age: float) -> None:
    """A negative one would select keys that change right now."""
    create_key(in_doubt=["charge"])
    assert close(older_than=age) == (1, "", f"older_than must be 0 to 3153600000, not {age!r}.")
