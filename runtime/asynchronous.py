"""Calls for an event loop: in threads of their own, as many as the machine has room for."""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .library import LOADING
from .threads import usable_cores

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


class AsyncCalls:
    """Runs a model's calls in ``workers`` threads, which are made when they are first needed; further
    calls wait in the order in which they came. A forked child gets threads of its own.

    Attributes:
        workers: as many as can each have ``num_threads`` cores, and at least one.
    """

    def __init__(self, num_threads: int) -> None:
        self.workers = max(1, usable_cores() // num_threads)
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0

    async def run(
        self, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The result of ``call``, made in one of the threads with the caller's context variables.

        Cancelled while it waits, the call is never made. Cancelled while it runs, it runs to its end,
        for compiled code cannot be stopped, and its result is dropped: the awaiting task goes on at
        once, the thread is free again when the call is over.
        """
        import asyncio

        context = contextvars.copy_context()
        work = functools.partial(context.run, call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads(), work)

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None or self._process != os.getpid():
            with LOADING:  # it is imported when it is first asked for
                from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(self.workers, thread_name_prefix="tcexport")
            self._process = os.getpid()
        return self._executor
