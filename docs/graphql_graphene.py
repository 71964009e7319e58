"""A graphene schema whose mutations run once: see recipes.md.

tests/acceptance/test_graphql.py runs this file.
"""

from functools import partial

import graphene
from graphene_django.views import GraphQLView
from shop import models

from django_idempotency.graphql import CountsEntries, mutate_once


def create_order(reference, amount):
    return models.Order.objects.create(reference=reference, amount=amount)


class CreateOrder(graphene.Mutation):
    class Arguments:
        reference = graphene.String(required=True)
        amount = graphene.Int(required=True)

    id = graphene.ID()
    reference = graphene.String()

    def mutate(self, info, **arguments):
        order = mutate_once(info.context, info, partial(create_order, **arguments), arguments)
        return CreateOrder(id=order.pk, reference=order.reference)


class Query(graphene.ObjectType):
    orders = graphene.Int()

    def resolve_orders(self, info):
        return models.Order.objects.count()


class Mutation(graphene.ObjectType):
    create_order = CreateOrder.Field()


class ShopView(CountsEntries, GraphQLView):
    pass


schema = graphene.Schema(Query, Mutation)
graphql = ShopView.as_view(schema=schema)
batches = ShopView.as_view(schema=schema, batch=True)
