"""Work that is finished although its task is cancelled. What views see is in ../steps/threads/test_leased_async.py."""

from __future__ import annotations

import asyncio
import gc

import pytest

from django_idempotency.engine.execution.bridge import until_done


@pytest.mark.parametrize("how", ["a second cancellation", "no more time"])
def test_it_can_be_cut_off(how: str) -> None:
    """The work does not go on behind the back of a task that has ended."""
    ended: list[str] = []

    async def run() -> None:
        arrived = asyncio.Event()

        async def work() -> None:
            arrived.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cut off")
                raise

        task = asyncio.create_task(until_done(work(), at_most=0 if how == "no more time" else 60))
        await arrived.wait()
        task.cancel()
        await asyncio.sleep(0)
        if how == "a second cancellation":
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert ended == ["cut off"]

    asyncio.run(run())


def test_an_error_behind_the_cancellation_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Only the cancellation is raised. Without `cancel()`, asyncio would log that the error was never retrieved."""

    async def run() -> None:
        arrived, go = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            arrived.set()
            await go.wait()
            raise ZeroDivisionError

        task = asyncio.create_task(until_done(work(), at_most=60))
        await arrived.wait()
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    gc.freeze()  # what other tests have left behind is not collected here
    try:
        asyncio.run(run())
        gc.collect()
    finally:
        gc.unfreeze()
    assert caplog.records == []
