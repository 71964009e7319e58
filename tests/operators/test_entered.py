"""What a person enters for a decision."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models import Model

from django_idempotency.maintenance.entered import result_of
from tests.keyed import PARTS
from tests.shopapp.models import File, Keyed, Order, Thumbnail

pytestmark = pytest.mark.django_db
DIGEST = bytes.fromhex("00ff7f80")
KEYS = [
    (
        Keyed,
        PARTS,
        [
            "2026-11-26T10:00:00.123456Z",
            "2026-01-01",
            "23:59:59.999999",
            "1 00:00:00.000001",
            "1.0123456789",
            0.5,
            "8e03978e-40d5-43dd-bc93-6894a57f9324",
            "12",
            7,
        ],
    ),
    (File, {"digest": DIGEST}, "AP9/gA=="),
    (Thumbnail, {"file_id": DIGEST}, "AP9/gA=="),
]


@pytest.mark.parametrize(("model", "values", "pk"), KEYS, ids=["composite", "bytes", "link"])
def test_a_row_is_named_by_its_exact_key(model: type[Model], values: dict[str, Any], pk: Any) -> None:
    """A primary key is entered as it is kept, so a decision can name the same rows as a step."""
    if model is Thumbnail:
        File.objects.create(digest=DIGEST)
    row = model._base_manager.create(**values)
    assert result_of({"model": model._meta.label, "pk": pk}, using="default") == row


@pytest.mark.parametrize("pk", [1, "a", [1], {"at": 1}, None])
def test_a_key_of_another_shape_names_no_row(pk: Any) -> None:
    """Such as one value for a key of nine."""
    with pytest.raises(ValueError, match=r"There is no shopapp\.Keyed with the primary key"):
        result_of({"model": "shopapp.Keyed", "pk": pk}, using="default")


def test_nul_in_a_key_names_no_row() -> None:
    """PostgreSQL would refuse the query, and a transaction around it would be broken."""
    with pytest.raises(ValueError, match=r"There is no sessions\.Session with the primary key"):
        result_of({"model": "sessions.Session", "pk": "\0"}, using="default")
    assert not Order.objects.exists()


@pytest.mark.django_db(databases=["default", "other"])
def test_a_row_beside_a_key_of_another_database_needs_its_alias() -> None:
    """The database that orders are written to can have another customer's order with the same number."""
    order = Order.objects.using("other").create(reference="mine")
    Order.objects.create(pk=order.pk, reference="of another customer")
    entered = {"model": "shopapp.Order", "pk": order.pk}
    with pytest.raises(
        ValueError, match=r"^The key is in the database “other”, but shopapp\.Order is written to “default”"
    ):
        result_of(entered, using="other")
    assert result_of({**entered, "using": "other"}, using="other").reference == "mine"
    assert result_of(entered, using="default").reference == "of another customer"
