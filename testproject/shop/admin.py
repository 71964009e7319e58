from django.contrib import admin

from shop.models import Order, Payment, Report

admin.site.register(Order)
admin.site.register(Payment)
admin.site.register(Report)
