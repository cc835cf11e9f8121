"""What runs out (descriptors, disks, shared memory) or must not grow (CPU, memory), and code that blocks everything."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import resource
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

import asyncparl
from tests.runtime.cluster_process import node_process

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 120.0
SILENCE_S = 8
"""Longer than anybody may be silent."""


@asyncparl.remote_class(max_concurrency=4)
class Worker:
    def echo(self, value: Any = None) -> Any:
        return value

    async def echo_async(self, value: Any = None) -> Any:
        return value

    async def rest(self) -> None:
        await trio.sleep_forever()

    def stream(self) -> Iterator[int]:
        yield from range(1_000_000)

    async def async_stream(self) -> AsyncIterator[int]:
        for number in range(1_000_000):
            yield number

    def hold_the_gil(self, seconds: int) -> str:
        # Through PyDLL a C function runs with the lock held: no other thread of the process runs meanwhile.
        ctypes.PyDLL(None).sleep(seconds)
        return "held"

    def memory(self) -> int:
        gc.collect()
        return int(psutil.Process().memory_info().rss)

    def pid(self) -> int:
        return os.getpid()

    def run_out_of_files(self, limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        while True:
            os.dup(0)


@pytest.mark.slow
async def test_code_that_lets_no_other_thread_run_is_waited_for() -> None:
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            worker = Worker()
            resting, stream = worker.rest(), worker.stream()
            assert await anext(stream) == 0
            calls = [worker.hold_the_gil(SILENCE_S), worker.echo(1)]
            waiting = worker.echo_async(2)
            async with Worker() as other:
                assert await other.echo(3) == 3
            assert await asyncparl.gather(calls) == ["held", 1]
            assert await waiting == 2
            assert [await anext(stream) for _ in range(5)] == [1, 2, 3, 4, 5]
            assert not resting.done()
            stream.cancel()


def num_switches(processes: list[psutil.Process]) -> int:
    """How often they have gone to sleep so far, all of their threads together."""
    num = 0
    for process in processes:
        for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
            fields = dict(line.split(":\t") for line in status.read_text().splitlines())
            num += int(fields["voluntary_ctxt_switches"])
    return num


@pytest.mark.slow
async def test_idle_actors_do_not_even_wake_up() -> None:
    async with asyncparl.connect():
        workers = [Worker() for _ in range(3)]
        resting = [worker.rest() for worker in workers]
        streams = [*(worker.stream() for worker in workers), *(worker.async_stream() for worker in workers)]
        for stream in streams:
            await anext(stream)
        processes = [psutil.Process(await worker.pid()) for worker in workers]
        fewest = 1 << 30
        for _ in range(5):  # some of what came before may still be going on
            before = num_switches(processes)
            await trio.sleep(0.5)
            fewest = min(fewest, num_switches(processes) - before)
        assert fewest <= len(processes)
        assert not any(call.done() for call in resting)
        for stream in streams:
            stream.cancel()


@pytest.mark.slow
async def test_many_calls_leave_no_memory_behind_on_either_side() -> None:
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            worker = Worker()

            async def make_calls(num: int) -> None:
                for _ in range(num // 500):
                    calls = [worker.echo(number) for number in range(200)]
                    calls += [worker.echo_async({"number": number}) for number in range(200)]
                    calls += [worker.echo_async() for _ in range(100)]
                    for call in calls[-100:]:
                        call.cancel()
                    await asyncparl.gather(calls[:-100])

            await make_calls(5000)
            before = own_memory(), await worker.memory()
            await make_calls(15_000)
            after = own_memory(), await worker.memory()
            assert after[0] - before[0] < 4 << 20
            assert after[1] - before[1] < 4 << 20


def own_memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@pytest.mark.parametrize("size", [1 << 17, 1 << 20])
async def test_a_program_with_too_long_arguments_is_told_so_and_leaves_nothing_open(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "x" * size])
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            node = node_process()
            num_files = []
            for _ in range(3):
                with pytest.raises(asyncparl.ActorDied, match=r"sys\.path and arguments are too long"):
                    await Worker().pid()
                num_files.append(node.num_fds())
            assert num_files[2] <= num_files[1]


async def test_an_error_for_want_of_descriptors_names_the_process_and_its_limit() -> None:
    async with asyncparl.connect(), Worker() as worker:
        pid = await worker.pid()
        with pytest.raises(OSError, match="Too many open files") as caught:
            await worker.run_out_of_files(64)
        note = caught.value.__notes__[-1]
        assert f"Too many open files: that process (pid {pid}) may have 64 (ulimit -n; its hard limit is " in note
        assert await worker.echo(1) == 1


@pytest.mark.slow
async def test_connecting_again_and_again_leaves_no_descriptors_open() -> None:
    num_files = []
    for number in range(5):
        async with asyncparl.connect():
            assert await Worker().echo(number) == number
        num_files.append(len(os.listdir("/proc/self/fd")))
    assert max(num_files[1:]) == num_files[1]


# --- in a process of their own ------------------------------------------------------------------------------------

FEW_FILES = """
    import psutil, resource, trio, asyncparl

    @asyncparl.remote_class
    class Worker:
        def echo(self, value): return value

    async def main():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        async with asyncparl.connect():
            workers, reasons = [], set()

            async def use(worker):
                try:
                    assert await worker.echo(1) == 1
                    workers.append(worker)
                except asyncparl.ActorDied as error:
                    reasons.add(error.reason.partition("cannot be started: ")[2])

            async with trio.open_nursery() as nursery:
                for _ in range(150):
                    nursery.start_soon(use, Worker())
            [node] = psutil.Process().children()
            print(len(workers) >= 20, [reason.replace(f"pid {node.pid}", "its pid") for reason in reasons])
            print(sum(await asyncparl.gather([worker.echo(1) for worker in workers])) == len(workers))
            for worker in workers[:10]:
                await asyncparl.close(worker)
            print(await asyncparl.gather([Worker().echo(number) for number in range(5)]))

    if __name__ == "__main__":
        trio.run(main)
"""


@pytest.mark.slow
def test_with_256_descriptors_as_many_actors_start_as_can_and_the_others_say_why(tmp_path: Path) -> None:
    done = run([sys.executable], FEW_FILES, tmp_path)
    whose = "its node (its pid) may have 256 (ulimit -n; its hard limit is 256)"
    advice = "start it with a higher limit, or use fewer actors"
    reasons = [f"Too many open files: {whose}; {advice}"]
    assert (done.returncode, done.stdout) == (0, f"True {reasons}\nTrue\n[0, 1, 2, 3, 4]\n")


FULL = """
    import os, sys, tempfile, numpy as np, trio, asyncparl

    @asyncparl.remote_class
    class Worker:
        def echo(self, value): return value
        def say(self, text): print(text)

    full, tempfile.tempdir = sys.argv[1:]

    def fill():
        try:
            for number in range(1000):
                with open(f"{full}/fill-{number}", "w") as file:
                    file.write("x" * 1000)
        except OSError as error:
            return
        print("not full")

    def make_room():
        for name in os.listdir(full):
            if name.startswith("fill-"):
                os.unlink(f"{full}/{name}")

    async def connect():
        async with asyncparl.connect():
            return await Worker().echo(1)

    async def attempt(result):
        try:
            return await result
        except asyncparl.AsyncparlError as error:
            return "No space left on device" in str(error).splitlines()[0], type(error).__name__

    async def main():
        fill()
        print(await attempt(connect()))
        make_room()
        async with asyncparl.connect():
            worker = Worker()
            await worker.echo(1)
            fill()
            print(await worker.echo(2), int((await worker.echo(np.ones(1 << 20))).sum()))
            await worker.say("said")
            print(await attempt(Worker().echo(3)))
            print(await worker.echo(4))
            make_room()
            print(await attempt(Worker().echo(5)))
            fill()
        make_room()
        print(await connect(), sorted(os.listdir(full)))

    if __name__ == "__main__":
        trio.run(main)
"""


@functools.cache
def mounting_unavailable() -> str | None:
    """Why no small file system can be mounted, for a process of its own."""
    done = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, text=True, check=False
    )
    return None if done.returncode == 0 else done.stderr.strip() or "unshare fails"


@pytest.fixture
def temporary_folder() -> Iterator[Path]:
    """One whose path is short."""
    with tempfile.TemporaryDirectory(prefix="f-") as folder:
        yield Path(folder)


def run_with_small_disk(mounted: Path, temporary: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    if (reason := mounting_unavailable()) is not None:
        pytest.skip(f"nothing can be mounted: {reason}")
    mount = f"mount -t tmpfs -o size=256k,nr_inodes=40 tmpfs {mounted} && exec"
    command = ["unshare", "-m", "sh", "-c", f'{mount} "$@"', "sh", sys.executable]
    return run(command, FULL, folder, str(mounted), str(temporary))


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system")
def test_on_a_full_disk_nothing_new_starts_and_what_runs_goes_on(tmp_path: Path, temporary_folder: Path) -> None:
    done = run_with_small_disk(temporary_folder, temporary_folder, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace("[Worker#1] said\n", "").splitlines() == [
        "(True, 'ResourceError')",
        "2 1048576",
        "(True, 'ActorDied')",
        "4",
        "5",
        "1 []",
    ]
    assert "[Worker#1] said" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system")
def test_full_shared_memory_is_no_concern_of_ours(tmp_path: Path, temporary_folder: Path) -> None:
    done = run_with_small_disk(Path("/dev/shm"), temporary_folder, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.replace("[Worker#1] said\n", "").splitlines() == ["1", "2 1048576", "3", "4", "5", "1 []"]


def run(command: list[str], program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [*command, str(script), *arguments],
        capture_output=True,
        text=True,
        env=environ,
        timeout=LIMIT_S,
        check=False,
        start_new_session=True,
    )
