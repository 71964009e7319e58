"""dj-stripe's webhook: Stripe delivers an event again until the answer is 200, and sometimes twice at once."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from uuid import uuid4

import httpx
import pytest

from tests.extra.projects.harness import Project, Site, at_once, dies
from tests.servers import eventually

NEEDS = ["djstripe"]
ENDPOINT, SECRET, ACCOUNT = str(uuid4()), "whsec_of_the_tests", "acct_1"
HOOK = f"/stripe/webhook/{ENDPOINT}/"
PROJECT = Project("dj_stripe", ready=HOOK)
SEED = f"""
from djstripe.models import Account, APIKey, WebhookEndpoint
account = Account.objects.create(id="{ACCOUNT}", livemode=False)
APIKey.objects.create(
    secret="sk_test_000000000000000000000000", type="secret", livemode=False, djstripe_owner_account=account
)
WebhookEndpoint.objects.create(
    id="we_1", livemode=False, enabled_events=["*"], secret="{SECRET}", status="enabled", url="https://shop.example",
    djstripe_uuid="{ENDPOINT}", djstripe_owner_account=account,
)
"""


class Stripe(BaseHTTPRequestHandler):
    """Stripe's API, as far as dj-stripe asks it: the payment that an event is about."""

    def do_GET(self) -> None:
        body = json.dumps(payment(self.path.split("?")[0].rsplit("/")[-1])).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def stripe() -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stripe)
    PROJECT.environment["STRIPE_API_HOST"] = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    yield
    server.shutdown()
    server.server_close()


def payment(number: str) -> dict[str, object]:
    return {
        "id": number,
        "object": "payment_intent",
        "amount": 4990,
        "currency": "eur",
        "status": "succeeded",
        "created": 1_700_000_000,
        "livemode": False,
        "customer": None,
        "metadata": {},
    }


def deliver(client: httpx.Client, event: str, fault: str = "") -> httpx.Response:
    """As Stripe does: each delivery has a signature of its own."""
    body = json.dumps(
        {
            "id": f"evt_{event}",
            "object": "event",
            "type": "payment_intent.succeeded",
            "api_version": "2026-05-27.dahlia",
            "created": 1_700_000_000,
            "livemode": False,
            "account": ACCOUNT,
            "data": {"object": payment(f"pi_{event}")},
            "request": None,
        }
    )
    now = int(time.time())
    signature = hmac.new(SECRET.encode(), f"{now}.{body}".encode(), "sha256").hexdigest()
    headers = {"Stripe-Signature": f"t={now},v1={signature}", "Content-Type": "application/json", "X-Fault": fault}
    return client.post(HOOK, content=body, headers=headers)


def books(site: Site, event: str) -> tuple[int, int, int, int]:
    """The shop's orders, and what dj-stripe has made of the event itself: it needs no help for that."""
    return (
        site.project.count("shopapp_order", "reference = %s", f"evt_{event}"),
        site.project.count("shopapp_ledger", "entry = %s", f"evt_{event}"),
        site.project.count("djstripe_event", "id = %s", f"evt_{event}"),
        site.project.count("djstripe_paymentintent", "id = %s", f"pi_{event}"),
    )


def test_twenty_deliveries_of_one_event_at_once(site: Site, key: str) -> None:
    with site.client(limits=httpx.Limits(max_connections=20)) as stripe:

        def until_acknowledged(_: int) -> None:
            eventually("Stripe's delivery to be acknowledged", lambda: deliver(stripe, key).status_code == 200)

        at_once(20, until_acknowledged)
    orders, *own = books(site, key)
    assert own == [1, 1, 1]
    site.counted("orders of 20 deliveries", orders, 1, 20)


def test_the_worker_dies_after_its_commit(site: Site, key: str) -> None:
    """Stripe has got no answer, and delivers the event again."""
    with site.client() as stripe:
        dies(lambda: deliver(stripe, key, "kill after COMMIT"))
        eventually("another worker's answer", lambda: deliver(stripe, key).status_code == 200)
    orders, *own = books(site, key)
    assert own == [1, 1, 1]
    site.counted("orders after a lost answer", orders, 1, 2)
