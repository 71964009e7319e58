"""A Celery application on a folder, with tasks that do their work once for each order."""

from __future__ import annotations

import os
import signal
import time
import traceback
from itertools import count
from pathlib import Path

import django
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

django.setup()

from django_idempotency import ResultNotStorable, once  # noqa: E402
from tests.shopapp.models import Ledger, Order  # noqa: E402

FOLDER = Path(os.environ["CELERY_FOLDER"])
RECEIPT = "x" * 20_000
"""As long as the JSON of an invoice: the time limit also strikes while it is written, sent and read."""
app = Celery(
    "tests.frameworks.jobs.celery_worker",
    broker="filesystem://",
    broker_transport_options={
        "data_folder_in": str(FOLDER / "queue"),
        "data_folder_out": str(FOLDER / "queue"),
        "control_folder": str(FOLDER / "control"),
    },
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@once(scope="celery", key=lambda order: order)
def place(order: str) -> dict[str, str]:
    Order.objects.create(reference=order)
    if order.startswith("crash") and not (FOLDER / "crashed").exists():
        (FOLDER / "crashed").touch()
        os.kill(os.getpid(), signal.SIGKILL)  # in the middle of the work
    if order.startswith("hang") and not (FOLDER / "hung").exists():
        (FOLDER / "hung").touch()
        signal.pause()
    return {"order": order, "receipt": RECEIPT}


@app.task(name="place_order", ignore_result=True, acks_late=True, reject_on_worker_lost=True)
def place_order(order: str, delivery: int) -> None:
    place(order)
    Ledger.objects.create(entry=f"{order} delivered {delivery}")


@app.task(name="place_orders", ignore_result=True, soft_time_limit=1)
def place_orders(batch: str) -> None:
    """Place orders until the time limit, which comes in the middle of one of them, and one more after it.

    Python ignores an exception that strikes in a finalizer, so the loop has an end of its own. One that strikes while
    the result becomes JSON is the cause of another. Whatever else ends the batch is kept in a file.
    """
    end = time.monotonic() + 3
    try:
        with (FOLDER / f"answered-{batch}").open("w", buffering=1) as answered:
            try:
                for number in count():
                    answered.write(place(f"{batch}-{number}")["order"] + "\n")
                    if time.monotonic() > end:
                        break
            except (SoftTimeLimitExceeded, ResultNotStorable) as error:
                if not isinstance(error.__cause__ or error, SoftTimeLimitExceeded):
                    raise
            answered.write(place(f"{batch}-after")["order"] + "\n")
    except BaseException:
        (FOLDER / f"ended-{batch}").write_text(traceback.format_exc())
        raise
    (FOLDER / f"ended-{batch}").touch()
