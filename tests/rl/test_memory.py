from __future__ import annotations

import subprocess
import sys

import pytest

# Page faults of 30 tensors of 64 MB each, every one made and dropped in another thread than the main one.
COUNT_PAGE_FAULTS = """
import resource, sys, threading, torch
from asyncparl.rl import keep_freed_memory

assert sys.argv[1] == "default" or keep_freed_memory()
torch.set_num_threads(1)

def work():
    torch.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(30):
        torch.ones(2**24)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def page_faults(setting: str) -> int:
    command = [sys.executable, "-c", COUNT_PAGE_FAULTS, setting]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only the GNU C library has mallopt")
def test_kept_memory_is_used_again_without_page_faults() -> None:
    assert page_faults("kept") < 50_000  # three tensors' worth
    assert page_faults("default") > 400_000
