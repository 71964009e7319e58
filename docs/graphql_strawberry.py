"""A strawberry schema whose mutations run once: see recipes.md.

tests/acceptance/test_graphql.py runs this file.
"""

from datetime import timedelta
from functools import partial

import strawberry
from shop import models
from shop.mutations import CountsEntries, mutate_once
from strawberry.django.views import GraphQLView
from strawberry.extensions import FieldExtension
from strawberry.schema.config import StrawberryConfig


class Once(FieldExtension):
    def __init__(self, **options):
        self.options = options

    def resolve(self, next_, source, info, **kwargs):
        work = partial(next_, source, info, **kwargs)
        return mutate_once(info.context.request, info, work, kwargs, **self.options)


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
