"""What a type checker tells before the first request does: both find an error in each line that has comments."""

from django.http import HttpRequest, HttpResponse

import django_idempotency
from django_idempotency import Idempotency, idempotent, once, run_once


def view(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


def work() -> int:
    return 1


print(django_idempotency.idempotend)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]

protected = idempotent(view)
protected(1, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
protected(HttpRequest(), pk="one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

# Options that do not exist, and values that cannot be.
idempotent(tll=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
idempotent(ttl="1h")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
idempotent(in_progress_status=400)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
idempotent(on_abandoned="held")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
Idempotency(tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Idempotency(ttl="1h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

# Without a request: a key there must be, and what is about requests means nothing.
run_once(work, scope="queue")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
run_once(work, scope="queue", key="1", required=False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
run_once(work, scope="queue", key="1", wait="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
once(scope="queue", key=str, methods=("POST",))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
