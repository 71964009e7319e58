"""The same shop for every package: one endpoint that writes an order, behind a login. `PEER` says who protects it."""

import os
import signal

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from peers import PEERS

peer = PEERS[os.environ["PEER"]]
settings.configure(
    SECRET_KEY="for the comparison only",
    ALLOWED_HOSTS=["*"],
    USE_TZ=True,
    ROOT_URLCONF="project",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework", *peer.apps],
    MIDDLEWARE=["project.die_before_the_answer", *peer.middleware, "project.die_after_the_view"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["DATABASE"],
            "HOST": os.environ["DATABASE_HOST"],
            "USER": "postgres",
            "ATOMIC_REQUESTS": "ATOMIC_REQUESTS" in os.environ,
        }
    },
    CACHES={"default": {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "cache"}},
    **peer.settings,
)
django.setup()

from django.core.management import call_command
from django.db import connection, models
from django.http import StreamingHttpResponse
from django.urls import path
from rest_framework.authentication import BasicAuthentication
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.views import APIView

PAUSE = 20261121


class Order(models.Model):
    note = models.TextField()

    class Meta:
        app_label = "shop"

    def __str__(self):
        return self.note


def post(self, request):
    """Write an order, and then what the client asks for in X-Do."""
    order = Order.objects.create(note=request.data["note"])
    what = request.headers.get("X-Do")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise":
        raise RuntimeError
    if what == "pause":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock_shared(%s), pg_advisory_unlock_shared(%s)", [PAUSE, PAUSE])
    if what == "stream":
        return StreamingHttpResponse(iter([b"order ", b"%d" % order.pk]), status=201)
    if what == "500":
        return Response({"detail": "not today"}, status=500)
    return Response({"order": order.pk}, status=201, headers={"Location": f"/orders/{order.pk}"})


def dying(moment):
    """A middleware that kills its process on the way out, if the client asks for it."""

    def factory(get_response):
        def middleware(request):
            response = get_response(request)
            if request.headers.get("X-Do") == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return response

        return middleware

    return factory


die_after_the_view = dying("die after the view")  # the innermost one
die_before_the_answer = dying("die before the answer")  # the outermost one


Orders = type(
    "Orders",
    (*peer.mixins(), APIView),
    {
        "authentication_classes": [BasicAuthentication],
        "permission_classes": [IsAuthenticated],
        "post": peer.method(post),
    },
)
urlpatterns = [path("orders/", peer.view(Orders.as_view()))]


def prepare():
    """Tables and two users."""
    from django.contrib.auth.models import User

    call_command("migrate", verbosity=0)
    call_command("createcachetable", verbosity=0)
    peer.prepare()
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    for name in ("ann", "bob"):
        User.objects.create_user(name, password="secret")
    print(f"Django {django.__version__}")


if __name__ == "__main__":
    prepare()
else:
    application = peer.application(get_wsgi_application())
