from django.contrib import admin

from shop.models import Order, Payment

admin.site.register(Order)
admin.site.register(Payment)
