"""What a person does in the admin, in a real Chromium, under a strict Content-Security-Policy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.admin_pages import make_key
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.leases import breaks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.integration.admin_urls")]


def test_a_person_finds_a_key_and_reads_its_response(admin: Any) -> None:
    """Search for the key a customer names, open it, read the response; nothing in it runs."""
    make_key("other")
    make_key("8e03978e", body=b'{"note":"<img src=x onerror=\\"document.title=1\\"><script>a()</script>","total":7}')
    admin.reload()
    assert admin.locator("#result_list tbody tr").count() == 2
    admin.fill("#searchbar", '"8e03978e"')
    admin.press("#searchbar", "Enter")
    admin.wait_for_url("**q=**")
    assert admin.locator("#result_list tbody tr").count() == 1
    admin.click("#result_list a")
    admin.wait_for_selector("pre")
    assert admin.inner_text("pre") == (
        '{\n  "note": "<img src=x onerror=\\"document.title=1\\"><script>a()</script>",\n  "total": 7\n}'
    )
    assert admin.locator("pre *").count() == 0
    assert admin.locator("input[name=_save]").count() == 0


def test_a_person_records_the_outcome_of_a_call_in_doubt(admin: Any, client: Any) -> None:
    """From the number above the list to the key, paste the gateway's answer, confirm; the retry goes on from there."""
    GATEWAY.reset()
    HOOKS.clear()
    GATEWAY.after = breaks
    client.raise_request_exception = False
    headers = {"Idempotency-Key": "8e03978e"}
    assert [client.post("/pay/hold", headers=headers).status_code for _ in range(2)] == [500, 409]
    make_key("other")

    admin.reload()
    admin.click("text=1 ? in doubt")
    admin.wait_for_url("**attention=in_doubt**")
    assert admin.locator("#result_list tbody tr").count() == 1
    admin.click("#result_list a")
    admin.click("text=Record an outcome")
    admin.fill("textarea[name=result]", "not json")
    admin.click("input[type=submit]")
    admin.wait_for_selector(".errorlist")
    admin.fill("textarea[name=result]", '{"charge": "ch_1"}')
    admin.click("input[value='Record an outcome']")
    admin.wait_for_selector(".messagelist .success")
    assert "ch_1" in admin.inner_text("#content-main")

    answer = client.post("/pay/hold", headers=headers)
    assert (answer.status_code, answer.json()["charge"]) == (201, "ch_1")
    assert GATEWAY.calls == 1
