"""Every page of the admin: by a strict policy, in both themes, by keyboard and for screen readers."""

from __future__ import annotations

from datetime import timedelta
from importlib import resources
from typing import Any

import pytest
from django.utils import timezone

from tests.admin_pages import make_key
from tests.step_rows import add_step

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.admin_urls")]
LIST = "/admin/django_idempotency/idempotencykey/"
PAGES = {
    "index page": "../../",
    "list": "",
    "filtered list": "?state=in_doubt",
    "completed key": "{done}/change/",
    "key in doubt": "{doubt}/change/",
    "release": "{doubt}/release/",
    "record": "{doubt}/record/",
    "answer": "{doubt}/answer/",
}
DANGLING = """() => [...document.querySelectorAll("[aria-describedby], [aria-labelledby]")].flatMap(element =>
    `${element.getAttribute("aria-describedby") ?? ""} ${element.getAttribute("aria-labelledby") ?? ""}`
        .split(" ").filter(id => id && !document.getElementById(id)).map(id => `${id} is nowhere`)
)"""
"""What axe leaves to a person: names and descriptions that point at nothing."""


@pytest.fixture
def rows() -> dict[str, int]:
    """One key in each state, and a response that would like to run."""
    hour = timedelta(hours=1)
    now = timezone.now()
    rows = {
        "done": make_key("done", body=b'["<script>document.title=1</script><style>body{display:none}</style>"]'),
        "live": make_key("live", status="in_progress", locked_until=now + hour),
        "stuck": make_key("stuck", status="in_progress", locked_until=now - hour),
        "doubt": make_key("doubt", status="failed", last_error="TimeoutError: no answer"),
    }
    make_key("<b onclick=alert(1)>", headers='[["Content-Type","text/html"]]', body=b"<script>a()</script>")
    add_step(rows["doubt"], "order", "write", finished_at=now, result='{"value": {"id": 7}}')
    add_step(rows["doubt"], error="TimeoutError")
    return {name: row.pk for name, row in rows.items()}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_keep_to_the_policy_and_to_the_rules_of_accessibility(
    rows: dict[str, int], admin: Any, theme: str
) -> None:
    """The fixture sees violations of the policy, axe those of the Web Content Accessibility Guidelines."""
    admin.emulate_media(color_scheme=theme)
    found = []
    for name, address in PAGES.items():
        admin.goto(LIST + address.format(**rows))
        assert admin.title() != "1"
        found += [f"{name}: {violation}" for violation in [*axe(admin), *admin.evaluate(DANGLING)]]
    assert not found, "\n".join(found)


def test_everything_is_reached_by_tab(rows: dict[str, int], admin: Any) -> None:
    """The numbers, the filters and the keys; then a decision, from its button to the end."""
    admin.reload()
    reached = tabbed(admin)
    for number in ("?state=in_flight", "?state=stuck", "?state=in_doubt", "?state=half_done"):
        assert sum(address.endswith(number) for address in reached) == 2, number  # in the overview, and in the filters
    assert any(address.endswith(f"/{rows['doubt']}/change/") for address in reached)

    admin.goto(f"{LIST}{rows['doubt']}/change/")
    reached = tabbed(admin)
    for decision in ("release", "record", "answer"):
        assert any(address.endswith(f"/{rows['doubt']}/{decision}/") for address in reached)
    admin.focus("text=Release for retry")
    admin.keyboard.press("Enter")
    admin.wait_for_url("**/release/")
    admin.fill("[name=reason]", "TICKET-1")
    admin.check("[name=confirmed]")
    assert "input Release for retry" in tabbed(admin)
    admin.focus("input[value='Release for retry']")
    admin.keyboard.press("Enter")
    admin.wait_for_selector(".messagelist .success")


def tabbed(page: Any) -> list[str]:
    """What has the focus after each press of Tab, until the page is through: addresses, or elements and their texts."""
    page.evaluate("document.activeElement.blur()")
    reached: list[str] = []
    for _ in range(200):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            """() => {
                const on = document.activeElement;
                return on.href || `${on.localName} ${on.value || on.textContent.trim()}`;
            }"""
        )
        if focused.startswith("body") or (reached and focused == reached[0]):
            break
        reached.append(focused)
    return reached


def axe(page: Any) -> list[str]:
    pytest.importorskip("axe_playwright_python")
    # Evaluated by the debugger, which no policy forbids. It must load no style sheets of its own, as it would for an
    # @import of Django's: the policy forbids that.
    page.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text())
    found = page.evaluate("axe.run(document, {preload: false})")
    assert found["passes"]
    return [
        f"{rule['id']} ({rule['help']}): {node['html']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
