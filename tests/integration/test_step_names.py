"""Names of steps that MySQL and MariaDB take for each other, because of the collation of their column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import IntegrityError, connection

from django_idempotency import IdempotencyConfigurationError, Operation, run_once
from django_idempotency.models import IdempotencyStep
from tests.leases import Broken, breaks

pytestmark = pytest.mark.django_db
TABLE = IdempotencyStep._meta.db_table
STEPS = ("call", "fetch", "write")
PAIRS = (("charge", "Charge"), ("cafe", "café"))
on_innodb = pytest.mark.only_on("mysql")
calls: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    calls.clear()


def run(work: Callable[[Operation], Any]) -> Any:
    return run_once(work, scope="s", key="k", operation="pay", lease=60).value


def steps(kind: str, *names: str) -> Callable[[Operation], Any]:
    """Work that runs a step under each of these names."""

    def work(operation: Operation) -> list[Any]:
        return [getattr(operation, kind)(name, lambda name=name: calls.append(name) or name) for name in names]

    return work


@on_innodb
@pytest.mark.parametrize("names", PAIRS)
@pytest.mark.parametrize("kind", ["call", "write"])
def test_the_second_of_an_attempt_is_refused(kind: str, names: tuple[str, str]) -> None:
    """Nothing runs under it, in no attempt. With another name the key comes to its end."""
    for _ in range(2):
        with pytest.raises(IdempotencyConfigurationError, match=f"step {names[1]!r}.*capitals or accents"):
            run(steps(kind, *names))
    assert calls == [names[0]]
    assert run(steps(kind, names[0], "receipt")) == [names[0], "receipt"]


@on_innodb
@pytest.mark.parametrize("names", PAIRS)
def test_a_second_fetch_is_refused(names: tuple[str, str]) -> None:
    """After it has read, which changes nothing outside: its one statement comes then."""
    with pytest.raises(IdempotencyConfigurationError, match=f"step {names[1]!r}"):
        run(steps("fetch", *names))
    assert list(IdempotencyStep.objects.values_list("name", flat=True)) == [names[0]]


@on_innodb
@pytest.mark.parametrize("first", ["call", "fetch", "write"])
@pytest.mark.parametrize("second", ["call", "write"])
def test_a_retry_under_the_other_name_is_refused(first: str, second: str) -> None:
    """Another release has renamed the step, and must not run it again."""

    def dies(operation: Operation) -> None:
        steps(first, "charge")(operation)
        raise Broken

    with pytest.raises(Broken):
        run(dies)
    with pytest.raises(IdempotencyConfigurationError, match="step 'Charge'"):
        run(steps(second, "Charge"))
    assert calls == ["charge"]


@on_innodb
def test_the_other_name_of_a_call_in_doubt_is_refused() -> None:
    """It may have happened."""
    with pytest.raises(Broken):
        run(lambda operation: operation.call("charge", breaks))
    with pytest.raises(IdempotencyConfigurationError, match="step 'Charge'"):
        run(steps("call", "Charge"))
    assert calls == []


@on_innodb
@pytest.mark.usefixtures("on_mariadb")
def test_mariadb_ignores_trailing_spaces() -> None:
    """Its collations pad."""
    with pytest.raises(IdempotencyConfigurationError, match="step 'a '"):
        run(steps("call", "a", "a "))
    assert calls == ["a"]


@pytest.mark.only_on("postgresql", "sqlite")
@pytest.mark.parametrize("names", [*PAIRS, ("a", "a ")])
@pytest.mark.parametrize("kind", STEPS)
def test_other_databases_tell_them_apart(kind: str, names: tuple[str, str]) -> None:
    assert run(steps(kind, *names)) == list(names)


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture
def binary(transactional_db: None) -> Iterator[None]:
    """The project has chosen a collation that ignores nothing."""
    execute(f"ALTER TABLE {TABLE} MODIFY name VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL")
    yield
    IdempotencyStep.objects.all().delete()
    execute(f"ALTER TABLE {TABLE} MODIFY name VARCHAR(100) NOT NULL")


@on_innodb
@pytest.mark.usefixtures("binary")
@pytest.mark.parametrize("kind", STEPS)
def test_the_column_s_own_collation_decides(kind: str) -> None:
    """Steps of such a project keep their names."""
    assert run(steps(kind, "charge", "Charge")) == ["charge", "Charge"]


@on_innodb
@pytest.mark.django_db(transaction=True)
def test_another_constraint_is_no_name() -> None:
    """Such as one that the project has added to the table."""
    execute(f"ALTER TABLE {TABLE} ADD CONSTRAINT no_such_name CHECK (name <> 'forbidden')")
    try:
        with pytest.raises(IntegrityError):
            run(steps("call", "forbidden"))
    finally:
        execute(f"ALTER TABLE {TABLE} DROP CONSTRAINT no_such_name")
