"""A strawberry schema whose mutations run once: see recipes.md.

tests/acceptance/test_graphql.py runs this file.
"""

from datetime import timedelta

import strawberry
from shop import models
from strawberry.django.views import GraphQLView
from strawberry.schema.config import StrawberryConfig

from django_idempotency.graphql import CountsEntries
from django_idempotency.graphql.strawberry import Once


@strawberry.type
class Order:
    id: strawberry.ID
    reference: str


@strawberry.type
class Query:
    @strawberry.field
    def orders(self) -> int:
        return models.Order.objects.count()


@strawberry.type
class Mutation:
    @strawberry.mutation(extensions=[Once(ttl=timedelta(days=7))])
    def create_order(self, reference: str, amount: int) -> Order:
        return models.Order.objects.create(reference=reference, amount=amount)


class ShopView(CountsEntries, GraphQLView):
    pass


schema = strawberry.Schema(Query, Mutation, config=StrawberryConfig(batching_config={"max_operations": 10}))
graphql = ShopView.as_view(schema=schema)
