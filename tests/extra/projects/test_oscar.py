"""The checkout of django-oscar: by invoice, in one transaction, and by card, in steps around a gateway's charge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.extra.projects.harness import Project, Site, dies, hang_up, hidden_fields
from tests.servers import eventually, fake_gateway

NEEDS = ["oscar"]
PROJECT = Project("oscar_shop", ready="/accounts/register/")
SEED = """
from oscar.test.factories import create_product
product = create_product(price=10, num_in_stock=1000)
product.product_class.requires_shipping = False
product.product_class.save()
"""
PAUSE = "pause at shopapp.ledger"
INVOICE, CARD = "/checkout/preview/", "/checkout/card/"
both = pytest.mark.parametrize("path", [INVOICE, CARD])


@pytest.fixture(scope="module", autouse=True)
def gateway() -> Iterator[httpx.Client]:
    with fake_gateway() as gateway:
        PROJECT.environment["GATEWAY"] = str(gateway.base_url)
        yield gateway


@dataclass
class Customer:
    """Somebody with an account, a product in the basket, and the page that asks to confirm the order."""

    site: Site
    client: httpx.Client
    gateway: httpx.Client
    email: str
    form: dict[str, str]

    def request(self, path: str, fault: str = "") -> httpx.Request:
        return self.client.build_request("POST", path, data=self.form, headers={"X-Fault": fault})

    def confirm(self, path: str, fault: str = "") -> httpx.Response:
        return self.client.send(self.request(path, fault))

    @property
    def orders(self) -> int:
        return self.site.project.count("order_order o JOIN auth_user u ON u.id = o.user_id", "u.email = %s", self.email)

    @property
    def charges(self) -> int:
        """By the number of the order, which Oscar makes of the basket's."""
        query = "SELECT min(b.id) FROM basket_basket b JOIN auth_user u ON u.id = owner_id WHERE u.email = %s"
        ((basket,),) = self.site.project.sql(query, self.email)
        return len(self.gateway.get("/charges", params={"reference": str(100_000 + basket)}).json()["charges"])


@pytest.fixture
def customer(site: Site, gateway: httpx.Client, key: str) -> Iterator[Customer]:
    email = f"{key}@shop.example"
    with site.client() as client:

        def submit(path: str, **data: str) -> None:
            fields = hidden_fields(client.get("/accounts/register/")) if path == "/accounts/register/" else {}
            token = {"csrfmiddlewaretoken": client.cookies["csrftoken"]}
            answer = client.post(path, data={**fields, **token, **data})
            assert answer.status_code == 302, answer.text

        submit("/accounts/register/", email=email, password1=key, password2=key)
        submit("/basket/add/1/", quantity="1")
        client.get("/checkout/", follow_redirects=True)
        page = client.get(INVOICE)
        assert page.status_code == 200, page.headers
        yield Customer(site, client, gateway, email, hidden_fields(page))


def thanked(*answers: httpx.Response) -> int:
    """So many answers lead to the page that thanks for the order. Others say that the basket is empty."""
    return sum(answer.headers.get("Location") == "/checkout/thank-you/" for answer in answers)


@both
def test_a_double_click(site: Site, customer: Customer, path: str) -> None:
    """The answer of the second click is the one that the browser shows."""
    answers = site.double_click(lambda: customer.confirm(path, PAUSE))
    assert customer.orders == 1
    site.counted(f"clicks on {path} that lead to the order", thanked(*answers), 2, 1)
    if path == CARD:
        site.counted("charges of a double click", customer.charges, 1, 2)
    assert customer.client.get("/checkout/thank-you/").status_code == 200 or not site.protected


@both
def test_a_customer_who_hangs_up_and_comes_back(site: Site, customer: Customer, path: str) -> None:
    with site.holding() as paused:
        hang_up(customer.request(path, PAUSE), lambda: paused(1))
    eventually("the order", lambda: customer.orders)
    site.counted(f"repeats on {path} that lead to the order", thanked(customer.confirm(path)), 1, 0)
    assert (customer.orders, customer.charges) == (1, path == CARD)


@pytest.mark.parametrize(
    ("path", "moment", "harm"),
    [
        (INVOICE, "kill at order.order", 0),
        (INVOICE, "kill after COMMIT", 1),
        (CARD, "kill at the charge", 0),
        (CARD, "kill at order.order", 0),
        (CARD, "kill after COMMIT", 1),
    ],
)
def test_a_killed_worker(site: Site, customer: Customer, path: str, moment: str, harm: int) -> None:
    """Oscar freezes the basket first. Without protection the customer comes back to an empty basket, and by card has
    paid for it."""
    dies(lambda: customer.confirm(path, moment))
    site.counted(f"repeats on {path} that lead to the order", thanked(customer.confirm(path)), 1, 0)
    site.counted(f"orders on {path} after {moment!r}", customer.orders, 1, harm)
    assert customer.charges == (path == CARD)
    assert customer.client.get("/checkout/thank-you/").status_code == 200 or not site.protected
