from __future__ import annotations

from rest_framework import parsers, serializers, viewsets

from django_idempotency.rest_framework import IdempotencyMixin
from shop.models import PRINTABLE, Order
from shop.pause import pause


class ItemField(serializers.RegexField):
    """A string, as the schema says. Numbers are refused."""

    def __init__(self) -> None:
        super().__init__(PRINTABLE, max_length=100)

    def to_internal_value(self, data: object) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class OrderSerializer(serializers.ModelSerializer):
    item = ItemField()

    class Meta:
        model = Order
        fields = ["id", "item", "quantity", "created_at"]


class OrderViewSet(IdempotencyMixin, viewsets.ModelViewSet):
    """/api/orders/, for callers with a token. Callers see only their own orders."""

    queryset = Order.objects.all()
    serializer_class = OrderSerializer
    parser_classes = [parsers.JSONParser]  # Django reads a broken multipart body as an empty one

    def get_queryset(self):
        return super().get_queryset().filter(customer=self.request.user).order_by("pk")

    def perform_create(self, serializer):
        serializer.save(customer=self.request.user)
        pause(self.request)
