"""The two ways for GraphQL, with strawberry's view and with graphene's."""

from __future__ import annotations

import json
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.core.files.base import ContentFile
from django.db.models.signals import post_save
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.test.client import MULTIPART_CONTENT
from django.urls import path

from django_idempotency.keys import caller_scope
from tests.shopapp.models import Order

pytest.importorskip("graphql")

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.graphql import mutate_once, protect_mutations

pytestmark = pytest.mark.django_db
URL = "/graphql"
CREATE = 'mutation { createOrder(reference: "a", amount: 1) { reference } }'
MADE = {"data": {"createOrder": {"reference": "a"}}}
HIDDEN = 'mutation B { createOrder(reference: "a", amount: 1) { reference } } query A { orders }'
FAILS = (
    'mutation { a: createOrder(reference: "a", amount: 1) { id } b: createOrder(reference: "b", amount: -1) { id } }'
)


def create(reference: str, amount: int) -> Order:
    """A resolver's work. It raises after its write, so what is left of it is half done."""
    order = Order.objects.create(reference=reference, amount=amount)
    if amount < 0:
        raise ValueError("no such amount")
    return order


def of_strawberry() -> SimpleNamespace:
    strawberry = pytest.importorskip("strawberry", reason="strawberry-graphql is not installed")
    views = pytest.importorskip("strawberry.django.views")
    config = pytest.importorskip("strawberry.schema.config")

    @strawberry.type
    class Made:
        id: int
        reference: str

    @strawberry.type
    class Query:
        orders: int = strawberry.field(resolver=lambda: Order.objects.count())

    @strawberry.type
    class Mutation:
        create_order = strawberry.mutation(resolver=create, graphql_type=Made)

    schema = strawberry.Schema(Query, Mutation, config=config.StrawberryConfig(batching_config={"max_operations": 10}))
    view = views.GraphQLView.as_view(schema=schema, multipart_uploads_enabled=True)
    return SimpleNamespace(one=view, batch=view, page="graphql_strawberry.py")


def of_graphene() -> SimpleNamespace:
    graphene = pytest.importorskip("graphene", reason="graphene is not installed")
    views = pytest.importorskip("graphene_django.views")

    class CreateOrder(graphene.Mutation):
        class Arguments:
            reference = graphene.String(required=True)
            amount = graphene.Int(required=True)

        id = graphene.ID()
        reference = graphene.String()

        def mutate(root, info: Any, **arguments: Any) -> Any:
            order = create(**arguments)
            return CreateOrder(id=order.pk, reference=order.reference)

    class Query(graphene.ObjectType):
        orders = graphene.Int(resolver=lambda root, info: Order.objects.count())

    class Mutation(graphene.ObjectType):
        create_order = CreateOrder.Field()

    schema = graphene.Schema(Query, Mutation)
    one, batch = (views.GraphQLView.as_view(schema=schema, batch=batch) for batch in (False, True))
    return SimpleNamespace(one=one, batch=batch, page="graphql_graphene.py")


@pytest.fixture(params=[of_strawberry, of_graphene], ids=["strawberry", "graphene"])
def library(request: pytest.FixtureRequest) -> SimpleNamespace:
    """The library's own views of one schema: for one operation, and for a batch."""
    return request.param()


@pytest.fixture
def guard(library: SimpleNamespace, serve: Any) -> SimpleNamespace:
    """The library's view, protected. It can be replaced by its view for batches."""
    using = [library.one]
    persisted: dict[str, str] = {}
    serve(path(URL[1:], protect_mutations(lambda request: using[-1](request), persisted=persisted)))
    return SimpleNamespace(use=using.append, persisted=persisted)


def ask(client: Client, body: Any, key: str | None = None, **kwargs: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": f'"{key}"'}
    client.raise_request_exception = False
    return client.post(URL, body, **{"content_type": "application/json", "headers": headers, **kwargs})


class TestTheGuard:
    def test_a_mutation_runs_once(self, client: Client, guard: Any) -> None:
        """The retry gets the same bytes, another document is a mismatch, and a query needs no key."""
        first, again = (ask(client, {"query": CREATE}, "one") for _ in range(2))
        assert (first.status_code, first.json(), first["Idempotency-Replayed"]) == (200, MADE, "false")
        assert (again.status_code, again.content, again["Idempotency-Replayed"]) == (200, first.content, "true")
        assert ask(client, {"query": CREATE + " "}, "one").status_code == 422
        assert ask(client, {"query": "{ orders }"}).json() == {"data": {"orders": 1}}

    @pytest.mark.parametrize("name", [{}, {"operationName": None}, {"operationName": ""}, {"operationName": "A"}])
    def test_a_mutation_beside_a_query_is_protected(self, client: Client, guard: Any, name: Any) -> None:
        """Whichever operation the library takes: there is no second order, and without a key there is none."""
        assert ask(client, {"query": HIDDEN, **name}).status_code == 400
        assert Order.objects.count() == 0
        for _ in range(20):
            ask(client, {"query": HIDDEN, **name}, "one")
        assert Order.objects.count() <= 1

    def test_a_resolver_that_raises_leaves_nothing(self, client: Client, guard: Any) -> None:
        """Nor what a field before it has written, and the retry runs again."""
        for _ in range(2):
            failed = ask(client, {"query": FAILS}, "one")
            assert (failed.status_code, failed["Idempotency-Replayed"]) == (500, "false")
            assert "no such amount" in failed.content.decode()
            assert Order.objects.count() == 0

    def test_a_batch_is_protected_if_it_has_a_mutation(self, client: Client, guard: Any, library: Any) -> None:
        """A batch of queries needs no key."""
        guard.use(library.batch)
        queries, mixed = [{"query": "{ orders }"}] * 2, [{"query": "{ orders }"}, {"query": CREATE}]
        assert ask(client, queries).status_code == 200
        assert ask(client, mixed).status_code == 400
        first, again = (ask(client, mixed, "one") for _ in range(2))
        assert (first.status_code, again["Idempotency-Replayed"], again.content) == (200, "true", first.content)
        assert Order.objects.count() == 1

    @pytest.mark.parametrize("second", [FAILS, "mutation {", ""])
    def test_a_batch_commits_whole_or_not_at_all(self, client: Client, guard: Any, library: Any, second: str) -> None:
        """Also if an entry after the mutation cannot be parsed, or is missing."""
        guard.use(library.batch)
        failed = ask(client, [{"query": CREATE}, {"query": second}], "one")
        assert b"<html" not in failed.content  # it is the library's own answer, and no exception
        assert (failed.status_code, Order.objects.count()) == (500, 0)

    def test_a_get_can_only_query(self, client: Client, guard: Any) -> None:
        """Not even a hidden mutation gets through, and the page of an IDE is shown as ever."""
        assert client.get(URL, {"query": "{ orders }"}).json() == {"data": {"orders": 0}}
        for query in (CREATE, HIDDEN, "{"):
            refused = client.get(URL, {"query": query}, headers={"Idempotency-Key": "one"})
            assert (refused.status_code, refused["Allow"]) == (405, "POST")
        assert client.get(URL, {"documentId": "7"}).status_code == 405
        assert client.get(URL).status_code in (200, 400)

    @pytest.mark.parametrize("where", [URL + "?query=" + quote(CREATE), URL + "?id=7"])
    def test_what_the_url_names_counts_as_well(self, client: Client, guard: Any, where: str) -> None:
        """Graphene prefers it to the body."""
        refused = client.post(where, {"query": "{ orders }"}, content_type="application/json")
        assert (refused.status_code, refused.json()["code"]) == (400, "missing-key")

    def test_an_upload_is_protected_like_its_operations(self, client: Client, guard: Any, library: Any) -> None:
        """The fields `operations` and `query` both count, because libraries read one or the other."""

        def upload(document: str, key: str | None = None, **more: str) -> Any:
            operations = json.dumps({"query": document, "variables": {"x": None}})
            form = {"operations": operations, "map": '{"0": ["variables.x"]}', "0": ContentFile(b"x", "x.txt"), **more}
            return ask(client, form, key, content_type=MULTIPART_CONTENT)

        assert upload(CREATE).json()["code"] == "missing-key"
        assert upload("{ orders }", query=CREATE).json()["code"] == "missing-key"
        if "graphene" not in library.page:  # it knows no uploads
            assert upload("{ orders }").json() == {"data": {"orders": 0}}
            assert [upload(CREATE, "one")["Idempotency-Replayed"] for _ in range(2)] == ["false", "true"]
            assert Order.objects.count() == 1

    def test_a_form_is_protected_like_its_query(self, client: Client, guard: Any, library: Any) -> None:
        """Graphene reads the field `query`."""

        def submit(query: str, key: str | None = None) -> Any:
            return ask(client, urlencode({"query": query}), key, content_type="application/x-www-form-urlencoded")

        assert submit(CREATE).json()["code"] == "missing-key"
        if "graphene" in library.page:  # strawberry knows no such forms
            assert submit("{ orders }").json() == {"data": {"orders": 0}}
            assert [submit(CREATE, "one")["Idempotency-Replayed"] for _ in range(2)] == ["false", "true"]
            assert Order.objects.count() == 1

    @pytest.mark.parametrize("body", [b"{", b"[]]", b"7", b"[7]", b'{"query": 7}', b'{"query": "{"}', b'{"query": ""}'])
    def test_what_cannot_be_read_needs_a_key(self, client: Client, guard: Any, body: bytes) -> None:
        """It may be a mutation in the eyes of the library."""
        assert ask(client, body).json()["code"] == "missing-key"

    def test_a_fragment_alone_is_no_query(self, client: Client, guard: Any) -> None:
        """A document without operations proves nothing."""
        assert ask(client, {"query": "fragment F on Query { orders }"}).json()["code"] == "missing-key"

    def test_a_persisted_document_is_looked_up(self, client: Client, guard: Any) -> None:
        """One that the guard does not know may be a mutation."""
        library = guard.executed = []

        def execute(request: HttpRequest) -> HttpResponse:
            library.append(request.method)
            return JsonResponse({"data": {}})

        guard.use(execute)
        guard.persisted.update(read="{ orders }", write=CREATE)
        named = {name: {"persistedQuery": {"version": 1, "sha256Hash": name}} for name in ("read", "write", "else")}
        told = [
            *(ask(client, {"extensions": named[name]}).status_code for name in named),
            *(client.get(URL, {"extensions": json.dumps(named[name])}).status_code for name in named),
        ]
        assert told == [200, 400, 400, 200, 405, 405]
        assert [ask(client, {"extensions": named["write"]}, "one")["Idempotency-Replayed"] for _ in range(2)] == [
            "false",
            "true",
        ]
        assert library == ["POST", "GET", "POST"]


@pytest.fixture
def fields(library: Any, run: Any, serve: Any, client: Client, django_user_model: Any) -> Any:
    """The page's schema, which protects each mutation; a signal raises after a negative order was written."""
    schema = run(f"docs/{library.page}")
    serve(path(URL[1:], schema.graphql), path("batches", getattr(schema, "batches", schema.graphql)))
    client.force_login(django_user_model.objects.create(username="ann"))
    post_save.connect(refuse_negative, Order)
    yield schema
    post_save.disconnect(refuse_negative, Order)


def refuse_negative(instance: Order, **kwargs: Any) -> None:
    if instance.amount < 0:
        raise ValueError("no such amount")


def batch(client: Client, key: str, *queries: str) -> Any:
    headers = {"Idempotency-Key": f'"{key}"'}
    return client.post("/batches", [{"query": query} for query in queries], "application/json", headers=headers)


TWO = 'mutation { a: createOrder(reference: "a", amount: 1) { id } b: createOrder(reference: "b", amount: %d) { id } }'
ONE = 'mutation { createOrder(reference: "%s", amount: 1) { id } }'


@pytest.mark.usefixtures("fields")
class TestTheFields:
    def test_a_mutation_runs_once(self, client: Client) -> None:
        """The retry gets the first order, even under another selection; other arguments are refused."""
        first, again = (ask(client, {"query": ONE % "a"}, "one").json() for _ in range(2))
        assert first == again == {"data": {"createOrder": {"id": str(Order.objects.get().pk)}}}
        assert ask(client, {"query": CREATE}, "one").json() == MADE
        changed = ask(client, {"query": ONE % "b"}, "one").json()["errors"][0]
        assert changed["extensions"] == {"code": "PayloadMismatch"}
        assert Order.objects.count() == 1

    def test_a_field_that_raises_leaves_nothing_and_the_others_stay(self, client: Client) -> None:
        """A retry runs it again, and not those that have finished."""
        for _ in range(2):
            assert ask(client, {"query": TWO % -1}, "one").json()["errors"][0]["path"] == ["b"]
            assert [*Order.objects.values_list("reference", flat=True)] == ["a"]

    def test_two_entries_of_a_batch_share_no_key(self, client: Client) -> None:
        """Not even with the same field and the same arguments."""
        entries = [ONE % "x", ONE % "y", ONE % "y", "{ orders }"]
        first, again = (batch(client, "one", *entries).json() for _ in range(2))
        assert [entry["data"].get("orders") for entry in again] == [None, None, None, 3]
        assert [entry["data"] for entry in first] == [entry["data"] for entry in again]
        assert [*Order.objects.order_by("pk").values_list("reference", flat=True)] == ["x", "y", "y"]

    def test_an_entry_that_was_not_run_moves_no_other(self, client: Client) -> None:
        """The first entry is invalid: the key of the second one is the same in each retry."""
        for _ in range(2):
            batch(client, "one", "mutation { nothing }", ONE % "y")
        assert Order.objects.count() == 1

    def test_a_caller_and_a_key_are_needed(self, client: Client) -> None:
        """Without one of them, nothing runs."""
        messages = [ask(client, {"query": CREATE}).json()["errors"][0]["message"]]
        client.logout()
        messages.append(ask(client, {"query": CREATE}, "one").json()["errors"][0]["message"])
        assert messages == ["Send the header Idempotency-Key.", "Log in."]
        assert Order.objects.count() == 0

    def test_another_user_has_other_keys(self, client: Client, django_user_model: Any) -> None:
        """One key of two users is two orders."""
        first = ask(client, {"query": ONE % "a"}, "one").json()
        client.force_login(django_user_model.objects.create(username="bob"))
        assert ask(client, {"query": ONE % "a"}, "one").json() != first
        assert Order.objects.count() == 2

    def test_another_tenant_has_other_keys(self, client: Client, settings: Any) -> None:
        """Also for one user: the project's `SCOPE` counts."""
        settings.IDEMPOTENCY = {"SCOPE": lambda request: f"{request.get_host()}:{caller_scope(request)}"}
        settings.ALLOWED_HOSTS = ["*"]
        told = []
        for tenant in ("acme.example", "globex.example", "acme.example"):
            client.defaults["HTTP_HOST"] = tenant
            told.append(ask(client, {"query": ONE % "a"}, "one").json()["data"]["createOrder"]["id"])
        assert told[0] == told[2] != told[1]
        assert Order.objects.count() == 2

    def test_a_scope_of_its_own_needs_no_login(self, client: Client, rf: Any) -> None:
        """Such as a token's in the variables."""
        request = rf.post(URL, headers={"Idempotency-Key": "one"})
        request.graphql_entry = 0
        info = SimpleNamespace(field_name="pay", path=SimpleNamespace(as_list=lambda: ["pay"]))
        work = partial(Order.objects.create, amount=1)
        first, again = (mutate_once(request, info, work, {"amount": Amount.ONE}, scope="token 7") for _ in range(2))
        assert first == again


class Amount(Enum):
    ONE = 1


def test_a_view_that_does_not_count_is_named(rf: Any, admin_user: Any) -> None:
    """Two mutations of a batch would share a key."""
    request = rf.post(URL, headers={"Idempotency-Key": "one"})
    request.user = admin_user
    with pytest.raises(IdempotencyConfigurationError, match="Put CountsEntries before the library's view"):
        mutate_once(request, None, lambda: 1, {})


def test_an_asynchronous_view_is_refused() -> None:
    async def view(request: HttpRequest) -> None: ...

    with pytest.raises(IdempotencyConfigurationError, match="needs a synchronous view"):
        protect_mutations(view)
