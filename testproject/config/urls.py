from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.contrib.staticfiles.urls import staticfiles_urlpatterns
from django.contrib.staticfiles.views import serve
from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.routers import DefaultRouter
from shop import api, charges, payments, reports, views, webhooks

router = DefaultRouter()
router.register("orders", api.OrderViewSet)

urlpatterns = [
    path("orders/", views.create_order),
    path("unprotected/orders/", views.create_order_unprotected),
    path("payments/", payments.pay),
    path("careful-payments/", payments.pay_carefully),
    path("reports/", reports.order_report),
    path("reports/<uuid:pk>/", reports.show_report, name="report"),
    path("webhooks/", webhooks.receive),
    path("webhooks/decorated/", webhooks.receive_decorated),
    path("v1/charges", charges.charge),
    path("idempotency/", include("django_idempotency.urls")),
    path("api/", include(router.urls)),
    path("api/schema/", SpectacularAPIView.as_view()),
    path("admin/", admin.site.urls),
    *staticfiles_urlpatterns(),
]
if settings.DEMO:  # gunicorn alone does not serve the admin's style sheets
    urlpatterns.append(re_path(r"^static/(?P<path>.*)$", serve, {"insecure": True}))
