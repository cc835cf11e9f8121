"""The stages of a call, measured as the script does it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import trio
from benchmarks.round_trip import STAGES, stage_times
stages, totals = trio.run(stage_times, 20)
assert len(stages) == len(STAGES) and {len(times) for times in stages} == {20} == {len(totals)}
for number, total in enumerate(totals):
    assert all(times[number] > 0 for times in stages)
    assert abs(sum(times[number] for times in stages) - total) < 0.01
"""


def test_the_stages_follow_one_another_and_are_all_of_the_call() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, check=True, timeout=100)
