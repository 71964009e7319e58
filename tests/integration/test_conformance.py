"""Rules from outside, each a test named after its number."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_idempotency.exceptions import IdempotencyConfigurationError
from django_idempotency.models import IdempotencyKey
from tests.http import problem
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.view_urls")]
DOCS = "https://shop.example/docs/idempotency"


@pytest.fixture
def documented(settings: Any) -> None:
    settings.IDEMPOTENCY = {"DOCS_URL": DOCS}


@pytest.mark.parametrize("sent", ["a,b", '"a', "?1", ":aGk=:", "(a)", "", " ", "x" * 256, '"a", "b"'])
def test_c1_a_malformed_key_is_400_and_not_one_statement_runs(post: Post, sent: str) -> None:
    """C1, C27, C30."""
    with CaptureQueriesContext(connection) as captured:
        response = post("/create", key=sent)
    assert problem(response)["title"] == "Idempotency-Key is not valid"
    assert (response.status_code, len(captured), Order.objects.count()) == (400, 0, 0)


def test_c1_both_forms_are_one_key(post: Post) -> None:
    """`"k"` and `k`."""
    assert [post("/create", key=k).headers["Idempotency-Replayed"] for k in ('"k"', "k")] == ["false", "true"]


def test_c1_the_quoted_form_can_be_demanded(post: Post, settings: Any) -> None:
    """REQUIRE_QUOTED_KEY."""
    settings.IDEMPOTENCY = {"REQUIRE_QUOTED_KEY": True}
    assert [post("/create", key=k).status_code for k in ("k", '"k"')] == [400, 201]


@pytest.mark.parametrize(
    "validator",
    ["django_idempotency.keys.is_uuid", "django.core.validators.validate_ipv4_address"],
)
def test_c6_a_validator_can_demand_uuids(post: Post, settings: Any, validator: str, key: str) -> None:
    """One that returns False, and one of Django's that raises."""
    settings.IDEMPOTENCY = {"KEY_VALIDATOR": validator}
    good = key if validator.endswith("uuid") else "127.0.0.1"
    assert [post("/create", key=k).status_code for k in ("order-1", good)] == [400, 201]


@pytest.mark.usefixtures("documented")
def test_c22_a_retry_while_running_is_409(post: Post) -> None:
    """C22, C24, C26, R2: exact title, Retry-After, link."""
    post("/create")
    IdempotencyKey.objects.update(status="in_progress", locked_until=timezone.now() + timedelta(hours=1))
    response = post("/create")
    assert problem(response)["title"] == "A request is outstanding for this Idempotency-Key"
    assert (response.status_code, response.headers["Retry-After"]) == (409, "60")
    assert response.headers["Link"] == f'<{DOCS}>; rel="describedby"; type="text/html"'
    assert problem(response)["type"] == f"{DOCS}#in-progress"
    assert Order.objects.count() == 1


def test_c22_the_status_can_be_429(post: Post, settings: Any) -> None:
    """in_progress_status, and a mismatch as 409."""
    settings.IDEMPOTENCY = {"IN_PROGRESS_STATUS": 429, "MISMATCH_STATUS": 409}
    post("/create", {"a": 1})
    assert post("/create", {"a": 2}).status_code == 409
    IdempotencyKey.objects.update(status="in_progress", locked_until=timezone.now() + timedelta(hours=1))
    response = post("/create", {"a": 1})
    assert (response.status_code, response.headers["Retry-After"]) == (429, "60")


@pytest.mark.usefixtures("documented")
def test_c23_a_missing_key_is_400(post: Post) -> None:
    """C23, C24: exact title, link to the docs."""
    response = post("/create", key=None)
    assert problem(response)["title"] == "Idempotency-Key is missing"
    assert response.status_code == 400
    assert response.headers["Link"] == f'<{DOCS}>; rel="describedby"; type="text/html"'
    assert Order.objects.count() == 0


@pytest.mark.usefixtures("documented")
def test_c25_other_payload_is_422(post: Post) -> None:
    """C24, C25, C27: exact title, and the view does not run."""
    post("/create", {"a": 1})
    response = post("/create", {"a": 2})
    assert problem(response)["title"] == "Idempotency-Key is already used"
    assert response.status_code == 422
    assert response.headers["Link"] == f'<{DOCS}>; rel="describedby"; type="text/html"'
    assert Order.objects.count() == 1


@hypothesis_settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=300))
def test_c30_any_header_is_a_key_or_400(post: Post, sent: str) -> None:
    """Fuzzed: never a 500."""
    assert post("/create", key=sent).status_code in (201, 400)


@pytest.mark.django_db(transaction=True)
def test_r19_without_a_store_nothing_runs(post: Post) -> None:
    """The key table is gone: the request fails closed, with an error that says what to do."""
    with connection.schema_editor() as editor:
        editor.alter_db_table(IdempotencyKey, IdempotencyKey._meta.db_table, "elsewhere")
    try:
        with pytest.raises(IdempotencyConfigurationError, match=r"Run: python manage\.py migrate$"):
            post("/create")
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(IdempotencyKey, "elsewhere", IdempotencyKey._meta.db_table)
    assert Order.objects.count() == 0
