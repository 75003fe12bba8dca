"""Threads for tests of memory, which a busy system cannot hold up where that takes more of it."""

from concurrent.futures import Future, ThreadPoolExecutor


class Prompt(ThreadPoolExecutor):
    """Makes at once what is common to blocks, which the first round waits for and reading does not.

    That takes microseconds, as long as the system lets a thread run. Where it does not, dask goes
    on with what is ready, which is to read all of the source.
    """

    def submit(self, call, tasks):
        if "common" not in str(tasks[0][0]):
            return super().submit(call, tasks)
        future = Future()
        future.set_result(call(tasks))
        return future
