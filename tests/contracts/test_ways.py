"""The contracts of the adapters, of the stored states and of the fence, by messages to PostgreSQL.

Production takes these. The same contracts, inside the transaction of a test, take Django's cursor, as do a server with
DEBUG and a traced process.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_idempotency.engine.stores import store_for
from tests.contracts import test_late_claims, test_states
from tests.contracts.adapters import Function, RestFramework, adapters
from tests.contracts.test_adapters import TestKeys, TestOutcomes
from tests.contracts.test_adapters_leased import TestLeased
from tests.ways import WAYS, going

__all__ = ["TestKeys", "TestLeased", "TestOutcomes"]
pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
adapter = http = under_atomic_requests = adapters(lambda adapter: type(adapter) is Function)
answering = adapters(lambda adapter: type(adapter) is RestFramework)


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with going(request.param):
        yield


@pytest.mark.parametrize("state", test_states.STATES)
def test_a_claim_that_meets_the_state(state: str) -> None:
    test_states.TestStatesContract().test_a_claim_that_meets_the_state(state)


@pytest.mark.parametrize("attempt", test_late_claims.ATTEMPTS)
def test_a_late_claim_changes_nothing(attempt: str) -> None:
    test_late_claims.test_a_late_claim_changes_nothing(store_for("default"), attempt, "the lease")


@pytest.mark.parametrize("field", ["attempt", "key_hash", "scope_hash"])
@pytest.mark.parametrize("attempt", test_late_claims.AFTER_A_QUERY)
def test_each_part_of_the_fence_counts(attempt: str, field: str) -> None:
    test_late_claims.test_each_part_of_the_fence_counts(store_for("default"), attempt, field)
