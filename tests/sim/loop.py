"""asyncio in virtual time: the event loop and the threads of one simulated process.

Production code awaits futures, sleeps, starts tasks and hands work to threads. Here all of that
ends in the one heap of `clock.Simulation`:

- `call_at` and `call_later` (and so asyncio.sleep, wait_for, timeouts) push a timer on the heap.
- `call_soon` (and so every step of a task) puts a handle into the queue of its loop. The queue is
  run to its end within the event that filled it, in order, and no virtual time passes.
- `run_in_executor` gives the work to a `VirtualThread`, which computes it at one drawn moment and
  hands the result back at a later one. One thread does one thing after the other.

A loop runs only inside of `Process.do`, which every event of a process goes through. So a pause
holds back its timers, the results of its threads and what arrives for it, and a kill drops them;
coroutines that are suspended then never go on. While a loop runs it is asyncio's running loop:
asyncio.Future, Task, Queue and Event work in it unchanged.

Nothing here looks at a real clock and there is one thread, so equal seeds give equal traces. An
exception that no production code handles goes to `Simulation.fails` and ends the seed.
"""

import asyncio
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.clock import Process

Draw = Callable[[], float]

CLOSE_TIMES_MAX = 8


AnyLoop: Any = asyncio.AbstractEventLoop  # of whose many methods few are needed


class VirtualLoop(AnyLoop):  # type: ignore[misc]
    """See the module. Only what production code needs is there."""

    def __init__(self, process: "Process") -> None:
        self._process, self._sim = process, process.sim
        self._ready: deque[asyncio.Handle] = deque()
        self._running = False
        self._tasks: set[asyncio.Task[Any]] = set()  # so that none is collected before `close`

    def run(self, action: Callable[[], None]) -> None:
        """Do something in this loop, and then all that it has made ready."""
        if self._running:
            action()
            return
        before, ready, process = _get_running_loop(), self._ready, self._process
        _set_running_loop(self)
        self._running = True
        try:
            action()
            while ready and process.alive:
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            self._running = False
            _set_running_loop(before)

    def close(self) -> None:
        """Throw away what is still suspended: no event of it happens any more.

        Python closes a coroutine that no task runs. Its `finally` blocks run then, and what they
        begin is closed as well; one that awaits something while it is closed is closed again.
        """
        before = _get_running_loop()
        _set_running_loop(self)
        try:
            while self._tasks:
                coroutine = self._tasks.pop().get_coro()
                for _ in range(CLOSE_TIMES_MAX):
                    with suppress(Exception):
                        coroutine.close()
                        break
        finally:
            _set_running_loop(before)
            self._ready.clear()

    # ------------------------------------------------------------ what asyncio asks of a loop

    def time(self) -> float:
        return self._sim.now

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Within this event; within another one at this time when the loop does not run."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._running:
            self._process.after(0.0, lambda: None)
        return handle

    call_soon_threadsafe = call_soon  # there is one thread

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """An event of this process."""
        return self.call_at(self._sim.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """An event of this process."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._sim.at(when, partial(self._ring, timer))
        return timer

    def create_future(self) -> "asyncio.Future[Any]":
        """One of asyncio's own."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> "asyncio.Task[Any]":
        """One of asyncio's own; a process that is killed leaves it pending, which is no bug."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run_in_executor(
        self, executor: "VirtualThread | None", func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Compute it in a thread; without one named, in one of its own."""
        thread = executor or VirtualThread(self._process, lambda: 0.001, lambda: 0.0)
        return thread.give(partial(func, *args), self.create_future())

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        """Whether an event of the process is being handled."""
        return self._running

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What production would only log is the end of a seed."""
        error = context.get("exception") or AssertionError(context["message"])
        if self._process.alive:
            self._sim.fails(error)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # `_ring` looks

    def _ring(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled():
            self._process.do(partial(self._rung, timer))

    def _rung(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled():  # it may have waited for the end of a pause
            timer._run()


class VirtualThread:
    """A thread that does one thing after the other; an executor for `run_in_executor`."""

    def __init__(self, process: "Process", seconds: Draw, answer_seconds: Draw) -> None:
        self._process = process
        self._seconds, self._answer_seconds = seconds, answer_seconds
        self._jobs: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()

    def give(self, work: Callable[[], Any], future: "asyncio.Future[Any]") -> "asyncio.Future[Any]":
        """Compute it when its turn has come."""
        self._jobs.append((work, future))
        if len(self._jobs) == 1:
            self._process.after(self._seconds(), self._compute)
        return future

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        """Begin nothing more; what is under way goes on, as in a real thread."""
        while len(self._jobs) > 1:
            self._jobs.pop()[1].cancel()

    def _compute(self) -> None:
        work, future = self._jobs[0]
        if not future.cancelled():
            try:
                done = partial(self._set, future, work(), None)
            except Exception as error:
                done = partial(self._set, future, None, error)
            self._process.after(self._answer_seconds(), done)
        self._jobs.popleft()
        if self._jobs:
            self._process.after(self._seconds(), self._compute)

    @staticmethod
    def _set(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
