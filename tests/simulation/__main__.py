"""Run scenarios for as long as one likes: `python -m tests.simulation --seeds 100000 --start 0`."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter

from tests.simulation.scenario import Outcome, run, scenario_of, shrink


def main() -> int:
    """The exit code: 1 if a seed failed."""
    options = _options()
    counts: Counter[str] = Counter()
    failed: list[int] = []
    began, shown = time.process_time(), time.monotonic()
    num, simulated_s = 0, 0.0
    gc.freeze()
    for seed in range(options.start, options.start + options.seeds):
        outcome = run(scenario_of(seed))
        num += 1
        simulated_s += outcome.seconds
        counts += outcome.counts
        if options.log:
            _show_log(outcome)
        if outcome.bugs:
            failed.append(seed)
            _tell(seed, outcome, shrinks=options.shrink)
        if options.cpu_s and time.process_time() - began > options.cpu_s:
            break
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"seed {seed}: {num} scenarios, {len(failed)} failed", flush=True)
    _summarize(num, failed, counts, simulated_s, time.process_time() - began)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first")
    parser.add_argument("--cpu-s", type=float, default=0, help="stop after so many seconds of CPU")
    parser.add_argument("--shrink", action="store_true", help="find a shorter scenario for each seed that fails")
    parser.add_argument("--log", action="store_true", help="print everything that happens")
    return parser.parse_args()


def _show_log(outcome: Outcome) -> None:
    for line in outcome.log:
        print(*line)
    print("digest", outcome.digest)


def _tell(seed: int, outcome: Outcome, *, shrinks: bool) -> None:
    print(f"\n=== seed {seed} failed; again with: python -m tests.simulation --start {seed}")
    for bug in outcome.bugs[:3]:
        print(bug)
    if shrinks:
        shorter = shrink(scenario_of(seed))
        print(f"the same with {len(shorter.steps)} steps:\n{shorter.settings}")
        for step in shorter.steps:
            print(f"    {step},")
        print(run(shorter).bugs[0])
    sys.stdout.flush()


def _summarize(num: int, failed: list[int], counts: Counter[str], simulated_s: float, cpu_s: float) -> None:
    for what, count in sorted(counts.items()):
        print(f"{count:10,} {what}")
    per_minute = num / max(cpu_s, 1e-9) * 60
    print(
        f"{num:,} scenarios, {simulated_s / 3600:.1f} hours simulated, {cpu_s:.0f} s of CPU: {per_minute:.0f} a minute"
    )
    print(f"failed: {failed or 'none'}")


if __name__ == "__main__":
    sys.exit(main())
