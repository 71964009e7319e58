from __future__ import annotations

from rest_framework import serializers, viewsets

from django_idempotency.rest_framework import IdempotencyMixin
from shop.models import Order
from shop.pause import pause


class OrderSerializer(serializers.ModelSerializer):
    class Meta:
        model = Order
        fields = ["id", "item", "quantity", "created_at"]


class OrderViewSet(IdempotencyMixin, viewsets.ModelViewSet):
    """POST /api/orders/, for callers with a token; each sees their own orders only."""

    queryset = Order.objects.all()
    serializer_class = OrderSerializer

    def get_queryset(self):
        return super().get_queryset().filter(customer=self.request.user).order_by("pk")

    def perform_create(self, serializer):
        serializer.save(customer=self.request.user)
        pause(self.request)
