"""The list of keys as CSV."""

from __future__ import annotations

import csv
from io import StringIO

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_idempotency.keys import derived_key
from tests.admin_pages import LIST, make_key, staff
from tests.step_rows import add_step

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin_urls")]


def test_a_list_is_exported_as_it_is_filtered(operator: Client) -> None:
    """For a ticket, or to compare it with the gateway's report. No cell is a formula."""
    for number in range(2):
        add_step(make_key(f"=k-{number}", status="failed"), keyed=number == 0)
    make_key("done")
    address = reverse("admin:django_idempotency_idempotencykey_export")
    answer = operator.get(address, {"state": "in_doubt"})
    second, first = sorted(csv.DictReader(StringIO(answer.content.decode())), key=lambda line: line["key"] != "'=k-1")
    assert answer.content.startswith(b'"decision","step","result","id",')
    assert (answer["Content-Type"], answer["Content-Disposition"]) == (
        "text/csv; charset=utf-8",
        'attachment; filename="idempotency-keys.csv"',
    )
    assert (first["key"], first["operation"], first["state"], first["in doubt"]) == (
        "'=k-0",
        "POST orders/",
        "in doubt",
        "charge",
    )
    assert (bool(first["derived keys"]), second["derived keys"]) == (True, "")
    client = staff("view_idempotencykey")
    hidden = list(csv.DictReader(StringIO(client.get(address, {"state": "in_doubt"}).content.decode())))
    assert {(line["key"], line["reference"]) for line in hidden} == {
        ("", first["reference"]),
        ("", second["reference"]),
    }
    assert 'href="export/?state=in_doubt"' in client.get(reverse(LIST), {"state": "in_doubt"}).content.decode()
    assert staff("view_user").get(address).status_code == 403
    assert client.get(address, {"body__startswith": "x"}).status_code == 400


@pytest.mark.parametrize("status", ["failed", "completed"])
def test_the_derived_keys_of_finished_calls_are_exported(operator: Client, status: str) -> None:
    """A gateway's report names them, whether the order was made or not. Reads and writes carry none."""
    key = make_key("k", status=status)
    for name, kind, keyed in (("charge", "call", True), ("mail", "call", False), ("order", "write", True)):
        add_step(key, name, kind, keyed=keyed, finished_at=timezone.now(), result='{"value": 1}')
    page = operator.get(reverse("admin:django_idempotency_idempotencykey_export")).content.decode()
    (line,) = csv.DictReader(StringIO(page))
    sent = derived_key(scope=key.scope, operation=key.operation, key="k", step="charge")
    assert (line["derived keys"], line["ended"]) == (str(sent), "charge, mail, order")
