"""A form of Wagtail's form builder: a visitor enrols in a course."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.extra.projects.harness import Project, Site, dies, hang_up, hidden_fields
from tests.servers import eventually

NEEDS = ["wagtail"]
PROJECT = Project("wagtail_site", ready="/")
SEED = """
from wagtail.models import Locale, Page, Site
from tests.extra.projects.wagtail_site.models import EnrolmentPage, FormField
Locale.objects.get_or_create(language_code="en")
root = Page.add_root(title="Root", slug="root")
page = root.add_child(instance=EnrolmentPage(title="Enrol", slug="enrol"))
FormField.objects.create(page=page, label="Name", field_type="singleline", required=True)
Site.objects.create(hostname="localhost", root_page=page, is_default_site=True)
"""
PAUSE = "pause at wagtailforms.formsubmission"


@pytest.fixture
def visitor(site: Site) -> Iterator[httpx.Client]:
    with site.client() as client:
        yield client


def filled_in(visitor: httpx.Client, name: str) -> dict[str, str]:
    """The visitor opens the page."""
    return {**hidden_fields(visitor.get("/")), "name": name}


def submissions(site: Site, name: str) -> int:
    return site.project.count("wagtailforms_formsubmission", "form_data->>'name' = %s", name)


def test_a_double_click(site: Site, visitor: httpx.Client, key: str) -> None:
    form = filled_in(visitor, key)
    first, second = site.double_click(lambda: visitor.post("/", data=form, headers={"X-Fault": PAUSE}))
    assert (first.status_code, second.status_code) == (200, 200)
    assert "You are number" in first.text
    site.counted("submissions of a double click", submissions(site, key), 1, 2)
    assert (first.text == second.text) is site.protected


def test_a_visitor_who_hangs_up_and_comes_back(site: Site, visitor: httpx.Client, key: str) -> None:
    form = filled_in(visitor, key)
    with site.holding() as paused:
        hang_up(visitor.build_request("POST", "/", data=form, headers={"X-Fault": PAUSE}), lambda: paused(1))
    eventually("the first submission", lambda: submissions(site, key))
    assert "You are number" in visitor.post("/", data=form).text
    site.counted("submissions after a hang-up", submissions(site, key), 1, 2)


def test_a_killed_worker(site: Site, visitor: httpx.Client, key: str) -> None:
    """The browser sends the form again. A page that has become private meanwhile is not shown."""
    form = filled_in(visitor, key)
    dies(lambda: visitor.post("/", data=form, headers={"X-Fault": "kill after COMMIT"}))
    assert "You are number" in visitor.post("/", data=form).text
    site.counted("submissions after a lost answer", submissions(site, key), 1, 2)

    site.project.sql(
        "INSERT INTO wagtailcore_pageviewrestriction (restriction_type, password, page_id) "
        "SELECT 'login', '', id FROM wagtailcore_page WHERE slug = 'enrol'"
    )
    try:
        assert visitor.post("/", data=form).status_code == 302
    finally:
        site.project.sql("DELETE FROM wagtailcore_pageviewrestriction")
