"""For every test: a temporary folder of this run's own, and a check that nothing is left behind."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

from asyncparl.runtime import program
from tests.leaks import MARK, Leak, LeakDetector, Snapshot, kill

# Two busy cores make any single example slow now and then. In CI the same examples are tried every time.
hypothesis.settings.register_profile("asyncparl", deadline=None)
hypothesis.settings.register_profile("asyncparl-ci", deadline=None, derandomize=True, print_blob=True, database=None)

_temporary_folder = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Mark all processes that the tests start, and give them a temporary folder that no other run uses."""
    # Workers load what they need, and not torch because some test has imported it: that takes seconds for each cluster.
    program.PRELOADABLE = ("numpy",)
    hypothesis.settings.load_profile("asyncparl-ci" if os.environ.get("CI") else "asyncparl")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a shell. Tests of Ctrl-C, and the programs that they start, would wait for ever.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    outer = os.environ.get(MARK)
    os.environ[MARK] = f"{outer}/{secrets.token_hex(8)}" if outer else secrets.token_hex(8)
    # pytest keeps what `tmp_path` holds of the last runs; that stays where it was.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="ap-")  # short: the name of a Unix socket is at most 107 bytes
    config.stash[_temporary_folder] = os.environ["TMPDIR"] = tempfile.tempdir = folder


def pytest_unconfigure(config: pytest.Config) -> None:
    if _temporary_folder in config.stash:
        shutil.rmtree(config.stash[_temporary_folder], ignore_errors=True)


@pytest.fixture(scope="session")
def leak_detector() -> LeakDetector:
    return LeakDetector(os.environ[MARK])


@pytest.fixture(autouse=True, scope="session")
def run_start(leak_detector: LeakDetector) -> Iterator[list[Snapshot]]:
    """What fixtures of a larger scope leave shows only here, where threads and files cannot be told from caches.

    The value holds what is compared with in the end: replaced when a test was blamed, for one leak fails one test.
    """
    start = [leak_detector.snapshot()]
    yield start
    leaks = leak_detector.wait_for_leaks(start[0], kinds=("process", "folder", "shared memory"))
    if leaks:
        kill(leak_detector.snapshot().processes - start[0].processes)
        _fail("The tests", leaks)


@pytest.fixture(autouse=True)
def leaves_nothing_behind(run_start: list[Snapshot], leak_detector: LeakDetector) -> Iterator[None]:
    """Fail a test that leaves a process, thread, open file, socket folder or shared memory behind; see leaks.py."""
    before = leak_detector.snapshot()
    yield
    leaks = leak_detector.wait_for_leaks(before)
    if leaks:
        kill(leak_detector.snapshot().processes - before.processes)
        run_start[0] = leak_detector.snapshot()
        _fail("This test", leaks)


def _fail(who: str, leaks: list[Leak]) -> None:
    pytest.fail(f"{who} left behind:\n" + "\n".join(f"  {leak}" for leak in leaks), pytrace=False)
