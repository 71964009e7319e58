"""The page about options: what is one operation, and what is compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, RequestFactory
from django.urls import clear_url_caches, path
from django.utils.translation import override

from django_idempotency.endpoints import list_endpoints
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.outcomes import Conflicted, Mismatched
from django_idempotency.engine.request.problems import problem_of, respond
from tests.acceptance.reference import DOCS
from tests.admin_pages import detail, make_key
from tests.shopapp.models import Order

KEYED = {"headers": {"Idempotency-Key": "one"}, "content_type": "application/json"}


@pytest.mark.django_db
def test_one_key_under_two_languages_is_one_order(run: Any, serve: Any, client: Client, settings: Any) -> None:
    """The operation has a name. The list of endpoints does not depend on the active language."""
    settings.LANGUAGE_CODE = "en"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    clear_url_caches()
    serve(*run("docs/keys.md", "shop/languages.py").urlpatterns)
    answers = [client.post(f"/{language}/orders/", **KEYED) for language in ("en", "de")]
    assert [answer["Idempotency-Replayed"] for answer in answers] == ["false", "true"]
    assert Order.objects.count() == 1
    with override("de"):
        assert {endpoint.route for endpoint in list_endpoints()} == {"en/orders/"}
    clear_url_caches()


@pytest.mark.django_db
def test_a_nested_time_stamp_may_differ(run: Any, serve: Any, client: Client) -> None:
    """And nothing else in the body."""
    serve(path("orders/", run("docs/keys.md", "shop/unstamped.py").create_order))
    bodies = [{"amount": amount, "meta": {"sent_at": number}} for number, amount in enumerate((1, 1, 2))]
    answers = [client.post("/orders/", body, **KEYED) for body in bodies]
    assert [answer.status_code for answer in answers] == [201, 201, 422]
    assert client.post("/orders/?stamp=3", bodies[0], **KEYED).status_code == 422


@pytest.mark.django_db
def test_bare_keys_are_refused_in_a_few_lines(run: Any, serve: Any, client: Client, settings: Any) -> None:
    """The client is told why, and a missing key is missing."""
    cards = run("docs/keys.md", "shop/uploads.py")
    settings.IDEMPOTENCY = {"KEY": run("docs/options.md", "shop/quoted.py").quoted_key}
    serve(path("chunks/", cards.upload))
    sent: list[dict[str, str]] = [{}, {"Idempotency-Key": "a"}, {"Idempotency-Key": '"a"'}]
    answers = [client.put("/chunks/", "a", headers={**headers, "Content-Range": "bytes 0-0/1"}) for headers in sent]
    assert [answer.status_code for answer in answers] == [400, 400, 201]
    assert answers[1].json()["detail"].endswith("Put the key in double quotes.")
    assert Order.objects.count() == 1


def test_a_conflict_is_429_in_a_few_lines(run: Any, settings: Any, rf: RequestFactory) -> None:
    """With `Retry-After`, and nothing else is."""
    settings.IDEMPOTENCY = {"ERROR_RESPONSE": run("docs/options.md", "shop/busy.py").too_many}
    busy, other = (respond(rf.post("/"), problem_of(outcome, resolve())) for outcome in (Conflicted(), Mismatched()))
    assert (busy.status_code, busy["Retry-After"], json.loads(busy.content)["code"]) == (429, "1", "in-progress")
    assert other.status_code == 422


@pytest.mark.django_db
def test_a_template_links_to_the_runbook(settings: Any, tmp_path: Path, admin_client: Client) -> None:
    """It extends the package's of the same name."""
    (text,) = re.findall(
        r"```html\+django\n(\{# templates/(\S+) #\}.*?)```", (DOCS / "options.md").read_text(), re.DOTALL
    )
    template = tmp_path / text[1]
    template.parent.mkdir(parents=True)
    template.write_text(text[0])
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    page = admin_client.get(detail(make_key())).content.decode()
    assert page.count('<a href="https://wiki.shop.example/keys">Runbook</a>') == 1
    assert 'id="idempotency-story"' in page
