"""Streaming responses: work in a body would be lost after the key is completed."""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.files.base import ContentFile
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, RequestFactory
from django.urls import path

from django_idempotency import IdempotencyConfigurationError, get_operation, idempotent
from django_idempotency.maintenance import half_done
from django_idempotency.models import IdempotencyKey
from tests.http import problem, replayed
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]


def chunks() -> Iterator[bytes]:
    yield b"chunk"
    Order.objects.create(reference="in the body")


async def achunks() -> AsyncIterator[bytes]:
    yield b"chunk"


class Lazy(io.RawIOBase):
    """A file whose content is made while it is read."""

    def readinto(self, buffer: Any) -> int:
        Order.objects.create(reference="in the body")
        return 0


def readable(file: Any) -> Any:
    file.write(b"content")
    file.seek(0)
    return file


WORKING: dict[str, Callable[[], Any]] = {
    "generator": lambda: StreamingHttpResponse(chunks()),
    "async": lambda: StreamingHttpResponse(achunks()),
    "lazy": lambda: FileResponse(Lazy()),
    "iterator": lambda: FileResponse(iter([b"x"])),
    "refused": lambda: StreamingHttpResponse(chunks(), status=422),
}
HARMLESS: dict[str, Callable[[], Any]] = {
    "file": lambda: FileResponse(open(__file__, "rb")),  # noqa: SIM115
    "buffer": lambda: FileResponse(io.BytesIO(b"content")),
    "django": lambda: FileResponse(ContentFile(b"content")),
    "temporary": lambda: FileResponse(readable(tempfile.NamedTemporaryFile())),  # noqa: SIM115
    "spooled": lambda: FileResponse(readable(tempfile.SpooledTemporaryFile())),  # noqa: SIM115
}


def view(made: Callable[[], Any]) -> Callable[..., Any]:
    def answer(request: HttpRequest) -> Any:
        Order.objects.create(reference="in the view")
        return made()

    return answer


async def aview(request: HttpRequest) -> Any:
    return StreamingHttpResponse(achunks())


def charged(request: HttpRequest) -> Any:
    get_operation(request).call("charge", dict)
    return StreamingHttpResponse(chunks())


def uncharged(request: HttpRequest) -> Any:
    return StreamingHttpResponse(chunks())


def times_out() -> None:
    raise TimeoutError


def in_doubt(request: HttpRequest) -> HttpResponse:
    get_operation(request).call("charge", times_out)
    return HttpResponse()


def writes_in_the_body(request: HttpRequest) -> Any:
    operation = get_operation(request)

    def body() -> Any:
        yield str(operation.write("order", Order.objects.create))

    return StreamingHttpResponse(body())


urlpatterns = [path(name, idempotent(view(made))) for name, made in (WORKING | HARMLESS).items()]
urlpatterns += [path(f"tombstone/{name}", idempotent(store_body=False)(view(made))) for name, made in WORKING.items()]
urlpatterns += [
    path("aview", idempotent(aview)),
    path("charged", idempotent(lease=60)(charged)),
    path("writes", idempotent(lease=60)(writes_in_the_body)),
    path("uncharged", idempotent(lease=60)(uncharged)),
    path("observed", idempotent(observe=True)(view(WORKING["generator"]))),
    path("keyless", idempotent(required=False)(view(WORKING["generator"]))),
    path("akeyless", idempotent(required=False)(aview)),
    path("reconciled", idempotent(lease=60, operation="pay", reconcile=lambda _: WORKING["generator"]())(in_doubt)),
]


@pytest.mark.parametrize("name", WORKING)
def test_a_body_that_may_do_work_is_refused_and_the_view_is_rolled_back(post: Post, name: str) -> None:
    """After a hang-up, each retry would hear that the request was processed. The error names both cures."""
    for _ in range(2):
        with pytest.raises(IdempotencyConfigurationError, match=r"return an HttpResponse\..*pass store_body=False"):
            post(f"/{name}")
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_file_does_no_work(post: Post, name: str) -> None:
    """It is sent as always, and a retry is told that its content was not stored."""
    first = post(f"/{name}")
    assert b"".join(first.streaming_content)
    first.close()
    assert problem(post(f"/{name}"))["code"] == "response-not-stored"
    assert Order.objects.count() == 1


@pytest.mark.parametrize("name", WORKING)
def test_with_store_body_false_the_body_is_the_projects_affair(post: Post, name: str) -> None:
    """What it does is not protected, and a retry runs nothing again."""
    first = post(f"/tombstone/{name}")
    assert (first.streaming, replayed(first)) == (True, "false")
    assert post(f"/tombstone/{name}").status_code == 409 if name != "refused" else True
    first.close()


def test_an_async_view_is_refused_too(key: str) -> None:
    """As one that is not."""
    with pytest.raises(IdempotencyConfigurationError, match="pass store_body=False"):
        async_to_sync(AsyncClient().post)("/aview", headers={"Idempotency-Key": key})
    assert not IdempotencyKey.objects.exists()


def test_a_view_of_the_rest_framework_is_refused_too(rf: RequestFactory) -> None:
    """And what it wrote is rolled back."""
    views = pytest.importorskip("rest_framework.views")
    from django_idempotency.rest_framework import IdempotencyMixin

    def handler(self: Any, request: Any) -> Any:
        return view(WORKING["generator"])(request)

    streams: Any = type("Streams", (IdempotencyMixin, views.APIView), {"post": handler})
    with pytest.raises(IdempotencyConfigurationError, match="store_body=False"):
        streams.as_view()(rf.post("/", headers={"Idempotency-Key": "k"}))
    assert Order.objects.count() == 0


def test_a_step_in_the_body_is_not_reached(post: Post) -> None:
    """It would run after the key is completed."""
    with pytest.raises(IdempotencyConfigurationError, match="store_body=False"):
        post("/writes")
    assert (Order.objects.count(), IdempotencyKey.objects.get().status) == (0, "failed")


def test_in_leased_mode_the_key_fails_and_a_finished_call_is_seen(post: Post) -> None:
    """It needs attention only if a call has finished."""
    for name in ("charged", "uncharged"):
        with pytest.raises(IdempotencyConfigurationError, match="pass store_body=False"):
            post(f"/{name}", key=name)
    assert [row.key for row in half_done()] == ["charged"]
    assert set(IdempotencyKey.objects.values_list("key", "status")) == {("charged", "failed"), ("uncharged", "failed")}


def test_reconcile_may_not_stream_either(post: Post) -> None:
    """The doubt remains."""
    with pytest.raises(TimeoutError):
        post("/reconciled")
    with pytest.raises(IdempotencyConfigurationError, match="pass store_body=False"):
        post("/reconciled")
    assert IdempotencyKey.objects.get().unknown == 1


@pytest.mark.parametrize(
    ("path", "key", "conf"), [("observed", "k", {}), ("keyless", None, {}), ("generator", "k", {"ENABLED": False})]
)
def test_without_protection_the_log_says_what_would_be_refused(
    post: Post, settings: Any, caplog: pytest.LogCaptureFixture, path: str, key: str | None, conf: dict[str, Any]
) -> None:
    """The response itself is never changed."""
    settings.IDEMPOTENCY = conf
    caplog.set_level(logging.WARNING, logger="django_idempotency")
    assert b"".join(post(f"/{path}", key=key).streaming_content) == b"chunk"
    assert Order.objects.count() == 2
    assert [record.message for record in caplog.records if "pass store_body=False" in record.message]


def test_an_async_view_without_a_key_streams(caplog: pytest.LogCaptureFixture) -> None:
    """And its log says the same."""

    async def received() -> list[bytes]:
        return [chunk async for chunk in await AsyncClient().post("/akeyless")]

    caplog.set_level(logging.WARNING, logger="django_idempotency")
    assert async_to_sync(received)() == [b"chunk"]
    assert "pass store_body=False" in caplog.text
