"""Every Python block of the pages runs, and every link leads somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.acceptance.pages import PAGES, ROOT, blocks

ELSEWHERE = "shop/reports.py"
"""This is a part of the shop's own module: test_long_running.py. And test_tutorial.py types all of its page."""
OF_A_QUEUE = {
    "shop/tasks.py": "django.tasks",
    "shop/dramatiq_tasks.py": "dramatiq",
    "shop/huey_tasks.py": "huey",
    "shop/procrastinate_tasks.py": "procrastinate",
}
"""What these blocks need: Django 6.0, or a queue. tests/extra/projects/test_brokers.py runs them in real queues."""
BLOCKS = [(page, name) for page in PAGES if page != "docs/tutorial.md" for name in blocks(page) if name != ELSEWHERE]


@pytest.fixture
def _the_projects_own(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the blocks import, or read, of a project."""
    monkeypatch.setenv("IDEMPOTENCY_KEYS", f"{'n' * 43}= {'o' * 43}=")
    monkeypatch.setitem(sys.modules, "shop.forms", SimpleNamespace(OrderView=object))
    monkeypatch.setitem(sys.modules, "shop.schema", SimpleNamespace(view=print))
    monkeypatch.setitem(sys.modules, "shop.payments", SimpleNamespace(pay=print))
    monkeypatch.setitem(sys.modules, "shop.broker", SimpleNamespace(publish=None, open_store=None))
    monkeypatch.setitem(sys.modules, "shop.webhooks", SimpleNamespace(SECRET=b"s"))
    monkeypatch.setitem(sys.modules, "shop.captcha", SimpleNamespace(passes=bool))


@pytest.mark.django_db
@pytest.mark.usefixtures("_the_projects_own")
@pytest.mark.parametrize(("page", "name"), BLOCKS)
def test_every_block_runs(run: Any, page: str, name: str) -> None:
    """As a module of a project. What the most important blocks do is told in the other files here."""
    if name in OF_A_QUEUE:
        pytest.importorskip(OF_A_QUEUE[name])
    run(page, name, INSTALLED_APPS=[])


@pytest.mark.parametrize(
    "page",
    [
        *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", *PAGES),
        *(str(page.relative_to(ROOT)) for page in (ROOT / "tests").glob("*.md")),
    ],
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    """Relative links name a file that exists, and a heading in it."""
    for target, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]+))?\)", (ROOT / page).read_text()):
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_the_tests_that_are_named_exist() -> None:
    """A guarantee whose test was renamed has no test. A test in a class is named with it."""
    pages = [(ROOT / "tests" / name).read_text() for name in ("guarantees.md", "private_attributes.md")]
    named = re.findall(r"`(tests/\S+\.py)::(?:\w+::)?(\w+)`", "".join(pages))
    assert len(named) > 90
    missing = [
        (file, test) for file, test in named if not re.search(rf"(def|class) {test}[(:]", (ROOT / file).read_text())
    ]
    assert missing == []


def anchors(page: Path) -> list[str]:
    """The headings as a code forge and MyST make links of them."""
    headings = re.findall(r"(?m)^#+ (.*)", page.read_text())
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
