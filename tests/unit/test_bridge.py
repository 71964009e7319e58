"""Work that is finished although its task is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_idempotency.engine.execution.bridge import finished


class Call:
    """Waits until it is answered."""

    def __init__(self, error: Exception | None = None) -> None:
        self.arrived, self.answer = asyncio.Event(), asyncio.Event()
        self.error = error
        self.ended: list[str] = []

    async def __call__(self) -> str:
        self.arrived.set()
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.ended.append("cut off")
            raise
        self.ended.append("answered")
        if self.error:
            raise self.error
        return "result"


async def cancelled(call: Call, *, at_most: float = 60) -> asyncio.Task[Any]:
    """A task that was cancelled in the middle of the call, and has seen that."""
    task = asyncio.create_task(finished(call(), at_most=at_most))
    await call.arrived.wait()
    task.cancel()
    await asyncio.sleep(0)
    return task


def test_without_a_cancellation_it_is_the_work() -> None:
    """Its result, or its error."""

    async def run(error: Exception | None) -> str:
        call = Call(error)
        call.answer.set()
        return await finished(call(), at_most=0)

    assert asyncio.run(run(None)) == "result"
    with pytest.raises(ValueError, match="refused"):
        asyncio.run(run(ValueError("refused")))


@pytest.mark.parametrize("error", [None, ValueError("refused")])
def test_the_work_ends_before_the_cancellation_goes_on(error: Exception | None) -> None:
    """With a result or an error: the cancelled task is cancelled all the same, and asyncio has no complaint."""
    complaints: list[Any] = []

    async def run() -> tuple[bool, list[str]]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        call = Call(error)
        task = await cancelled(call)
        waited = not task.done()
        call.answer.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return waited, call.ended

    assert asyncio.run(run()) == (True, ["answered"])
    assert complaints == []


@pytest.mark.parametrize("how", ["a second cancellation", "no more time"])
def test_it_can_be_cut_off(how: str) -> None:
    """The work does not go on behind the back of a task that has ended."""

    async def run() -> list[str]:
        call = Call()
        task = await cancelled(call, at_most=0 if how == "no more time" else 60)
        if how == "a second cancellation":
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        return call.ended

    assert asyncio.run(run()) == ["cut off"]
