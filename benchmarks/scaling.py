"""Where 10 to 1,000 hosts that play for one learner find their limit, by arithmetic and by simulation.

    python benchmarks/scaling.py                     # from the figures in results/scaling.json
    python benchmarks/scaling.py --measure --save    # measure this machine first; keep figures and tables

Sizes come from the code: they are those of the arrays that an actor sends, and of the network's weights. Rates are
measured, on one core. `--save` also puts the tables into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import bisect
import heapq
import json
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trio

import asyncparl
from asyncparl.bench.report import machine
from asyncparl.bench.training import environment_rate, inference_rate, learning_rate
from asyncparl.rl import AtariShallow, WeightLayout
from asyncparl.runtime import node_link
from asyncparl.runtime.call import STREAM_CREDIT
from asyncparl.training import TrainingConfig
from asyncparl.training.batching import BatchAssembler
from asyncparl.training.exchange import MAX_OFFERS_PER_S
from asyncparl.training.frames import FrameRollout
from asyncparl.transport import endpoints
from asyncparl.transport.nng import NngChannel

RESULTS = Path(__file__).parent / "results" / "scaling"
DOCUMENT = Path(__file__).parent.parent / "docs" / "scaling.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"

HOSTS = (10, 30, 100, 300, 1000)
SIMULATED_HOSTS = (10, 100, 1000)
CORES_PER_HOST = 16
FRAME_SHAPE, STACK = (84, 84), 4
FRAME_BYTES = 84 * 84
OBS_SHAPE = (STACK, *FRAME_SHAPE)
LINKS_GBIT_S = (10, 25, 100)
SIMULATORS = {"Pong": 0, "100 steps/s a core": 100, "10 steps/s a core": 10}  # 0: as measured
LEARNERS = {"one CPU thread": 0, "100,000 steps/s": 100_000}  # 0: as measured
SIMULATED_GBIT_S = 25
ROLLOUTS_PER_ACTOR = 12


@dataclass(frozen=True)
class Inputs:
    """What was measured."""

    play_rate: float
    """Agent steps a second of an actor on one core, Pong with the policy included."""
    learn_rate: float
    """Agent steps a second of the learner with one CPU thread."""
    loop_s: float
    """Seconds that the event loop of the learner's process is busy with a rollout that comes through a socket."""


@dataclass(frozen=True)
class Setup:
    """What plays and learns."""

    num_actors: int
    play_rate: float
    learn_rate: float
    link_bytes_s: float
    loop_s: float


@dataclass(frozen=True)
class Outcome:
    """Of a simulation: agent steps a second, busy shares, and updates between playing and learning."""

    steps_per_s: float
    network: float
    loop: float
    learner: float
    lag: float

    def full(self) -> str:
        """The stage that holds up the others."""
        shares = {"network": self.network, "event loop": self.loop, "learner": self.learner}
        name = max(shares, key=lambda each: shares[each])
        return name if shares[name] > 0.95 else "nothing"


# --- sizes -------------------------------------------------------------------------------------------------------


def paper_config() -> TrainingConfig:
    """Rollouts and batches as in the paper: ours are smaller, for machines with a few cores."""
    return TrainingConfig(env="pong", precision="bf16", unroll_length=20, batch_size=32)


def make_rollout(config: TrainingConfig) -> FrameRollout:
    """What an actor sends, without episodes that end."""
    shape = num_steps, num_envs = config.unroll_length, config.envs_per_actor
    return FrameRollout(
        frames=np.zeros((num_envs, STACK + num_steps, *FRAME_SHAPE), np.uint8),
        older_frames=np.zeros((0, STACK - 1, *FRAME_SHAPE), np.uint8),
        actions=np.zeros(shape, np.int64),
        behaviour_log_probs=np.zeros(shape, np.float32),
        rewards=np.zeros(shape, np.float32),
        terminated=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        final_obs=np.zeros((0, *OBS_SHAPE), np.uint8),
        final_steps=np.zeros((0, 2), np.int64),
    )


def rollout_bytes(config: TrainingConfig) -> int:
    """Of the message that carries it, but for some hundred bytes of framing."""
    return sum(array.nbytes for array in make_rollout(config) if array is not None)


def stacked_bytes(config: TrainingConfig) -> int:
    """The same if whole stacks were sent."""
    observations = (config.unroll_length + 1) * config.envs_per_actor * STACK * FRAME_BYTES
    frames = (config.unroll_length + STACK) * config.envs_per_actor * FRAME_BYTES
    return rollout_bytes(config) - frames + observations


def weights_bytes() -> int:
    """Of the shallow network for Pong, packed."""
    model = AtariShallow(6)
    return int(WeightLayout.of(model).pack(model).nbytes)


# --- measuring ---------------------------------------------------------------------------------------------------


@asyncparl.remote_class
class Player:
    """Sends the same rollout again and again."""

    def rollouts(self, config: TrainingConfig, num: int) -> Iterator[FrameRollout]:
        rollout = make_rollout(config)
        for _ in range(num):
            yield rollout


def measure(config: TrainingConfig, repeats: int) -> Inputs:
    """Medians on this machine."""
    torch.set_num_threads(1)
    play, learn, loop = list[float](), list[float](), list[float]()
    for _ in range(repeats):
        stages = environment_rate(config.envs_per_actor), inference_rate(config.envs_per_actor, config)
        play.append(1 / sum(1 / rate for rate in stages))
        learn.append(learning_rate(config))
        loop.append(trio.run(_loop_seconds, config, 100))
    return Inputs(*(statistics.median(samples) for samples in (play, learn, loop)))


async def _loop_seconds(config: TrainingConfig, num: int) -> float:
    """A rollout: received, decoded, copied into its batch. The time of this thread only."""
    assembler = BatchAssembler(
        num_steps=config.unroll_length, num_columns=config.batch_size, obs_shape=OBS_SHAPE, obs_dtype=np.dtype(np.uint8)
    )
    # As from another host: without shared memory, and with threads of NNG that read from the socket.
    place: Any = node_link
    sockets: Any = endpoints
    before, place.SHARED_BYTES = place.SHARED_BYTES, 0
    unix_channel, sockets.UnixChannel = sockets.UnixChannel, NngChannel
    try:
        async with asyncparl.connect(preload=["numpy", "torch"]):
            player: Any = Player()
            started, num_taken = 0.0, 0
            async for rollout in player.rollouts(config, 10 + num):
                started = started or (time.thread_time() if num_taken == 10 else 0.0)
                num_taken += 1
                if batch := assembler.add(rollout, 0):
                    assembler.release(batch)
            return (time.thread_time() - started) / num
    finally:
        place.SHARED_BYTES, sockets.UnixChannel = before, unix_channel


# --- simulating --------------------------------------------------------------------------------------------------


def simulate(setup: Setup, config: TrainingConfig) -> Outcome:
    """Actors that play, a network, an event loop and a learner, each of which serves in the order of arrival.

    An actor is at most `STREAM_CREDIT` rollouts ahead of what was taken from it; the event loop takes a rollout when
    there is room in one of the batches. The newest weights are at an actor at once when it begins a rollout, and after
    each pause between two offers to it; the lag is the mean over the steps.
    """
    steps = config.unroll_length * config.envs_per_actor
    play_s, update_s = steps / setup.play_rate, config.batch_size * config.unroll_length / setup.learn_rate
    send_s = rollout_bytes(config) / setup.link_bytes_s
    per_batch = max(1, config.batch_size // config.envs_per_actor)
    room = config.num_batches * per_batch
    # Actors do not start at the same moment.
    made = [(play_s * (1 + actor / setup.num_actors), actor) for actor in range(setup.num_actors)]
    taken_of = [deque([0.0] * STREAM_CREDIT, STREAM_CREDIT) for _ in made]
    begun = [0.0] * setup.num_actors
    network_free = loop_free = learner_free = 0.0
    learned: list[float] = []  # when each update was done
    lags: list[float] = []
    played: list[tuple[float, float]] = []  # when the rollouts of the next batch were begun, and made
    pause_s = setup.num_actors / MAX_OFFERS_PER_S
    num_taken = max(2000, ROLLOUTS_PER_ACTOR * setup.num_actors) // per_batch * per_batch
    for index in range(num_taken):
        made_at, actor = made[0]
        network_free = max(network_free, made_at) + send_s
        released = learned[(index - room) // per_batch] if index >= room else 0.0
        loop_free = max(loop_free, network_free, released) + setup.loop_s
        played.append((begun[actor], made_at))
        if len(played) == per_batch:
            lags.append(len(learned) - mean_version(learned, *played[per_batch // 2], pause_s))
            learner_free = max(learner_free, loop_free) + update_s
            learned.append(learner_free)
            played.clear()
        taken_of[actor].append(loop_free)
        begun[actor] = max(made_at, taken_of[actor][0])
        heapq.heapreplace(made, (begun[actor] + play_s, actor))
    half = len(learned) // 2
    span = learned[-1] - learned[half - 1]
    rollouts_per_s = (len(learned) - half) * per_batch / span
    return Outcome(
        steps_per_s=rollouts_per_s * steps,
        network=rollouts_per_s * send_s,
        loop=rollouts_per_s * setup.loop_s,
        learner=rollouts_per_s / per_batch * update_s,
        lag=statistics.fmean(lags[half:]),
    )


def mean_version(learned: Sequence[float], begun: float, made: float, pause_s: float) -> float:
    """Of the weights that played a rollout, which is looked at in the middle of each of its twentieths."""
    moments = [begun + (made - begun) * (part + 0.5) / 20 for part in range(20)]
    offered = [begun + (moment - begun) // pause_s * pause_s for moment in moments]
    return statistics.fmean(bisect.bisect_right(learned, moment) for moment in offered)


# --- tables ------------------------------------------------------------------------------------------------------


def tables(inputs: Inputs, config: TrainingConfig) -> str:
    """All of them, as Markdown."""
    return "\n".join([*_sizes(config), "", *_demand(inputs, config), "", *_limits(inputs, config), "",
                      *_simulated(inputs, config)])  # fmt: skip


def _sizes(config: TrainingConfig) -> Iterator[str]:
    steps = config.unroll_length * config.envs_per_actor
    yield "| of Pong, 84 x 84, 4 frames | bytes | an agent step |"
    yield "|---|--:|--:|"
    for name, num_bytes in (
        ("a rollout: stacks of frames, as the networks see them", stacked_bytes(config)),
        ("a rollout: single frames, as they are sent", rollout_bytes(config)),
    ):
        yield f"| {name} | {_bytes(num_bytes)} | {num_bytes / steps:,.0f} B |"
    yield f"| weights: back, to each host, for each update at most | {_bytes(weights_bytes())} | |"


def _demand(inputs: Inputs, config: TrainingConfig) -> Iterator[str]:
    per_step = rollout_bytes(config) / (config.unroll_length * config.envs_per_actor)
    yield "| hosts | cores | memory for rollouts ahead | " + " | ".join(f"{name}: in" for name in SIMULATORS) + " |"
    yield "|--:|--:|--:|" + "--:|" * len(SIMULATORS)
    for hosts in HOSTS:
        cores = hosts * CORES_PER_HOST
        ahead = _bytes(cores * STREAM_CREDIT * rollout_bytes(config))
        rates = [cores * (rate or inputs.play_rate) for rate in SIMULATORS.values()]
        cells = [f"{rate:,.0f} steps/s, {_bytes(rate * per_step)}/s" for rate in rates]
        yield f"| {hosts:,} | {cores:,} | {ahead} | {' | '.join(cells)} |"


def _limits(inputs: Inputs, config: TrainingConfig) -> Iterator[str]:
    steps = config.unroll_length * config.envs_per_actor
    per_step = rollout_bytes(config) / steps
    rates = {f"network, {gbit} Gbit/s": gbit / 8 * 1e9 / per_step for gbit in LINKS_GBIT_S}
    rates["event loop"] = steps / inputs.loop_s
    rates |= {f"learner, {name}": float(rate or inputs.learn_rate) for name, rate in LEARNERS.items()}
    yield "| full at | agent steps/s | " + " | ".join(f"cores of {name}" for name in SIMULATORS) + " |"
    yield "|---|--:|" + "--:|" * len(SIMULATORS)
    for name, rate in sorted(rates.items(), key=lambda item: item[1]):
        cores = [f"{rate / (speed or inputs.play_rate):,.0f}" for speed in SIMULATORS.values()]
        yield f"| {name} | {rate:,.0f} | {' | '.join(cores)} |"


def _simulated(inputs: Inputs, config: TrainingConfig) -> Iterator[str]:
    yield "| simulator | learner | hosts | agent steps/s | full | network | event loop | learner | policy lag |"
    yield "|---|---|--:|--:|---|--:|--:|--:|--:|"
    for simulator, rate in SIMULATORS.items():
        for learner, learn_rate in LEARNERS.items():
            for hosts in SIMULATED_HOSTS:
                setup = Setup(
                    num_actors=hosts * CORES_PER_HOST,
                    play_rate=rate or inputs.play_rate,
                    learn_rate=learn_rate or inputs.learn_rate,
                    link_bytes_s=SIMULATED_GBIT_S / 8 * 1e9,
                    loop_s=inputs.loop_s,
                )
                outcome = simulate(setup, config)
                shares = [f"{share:.0%}" for share in (outcome.network, outcome.loop, outcome.learner)]
                yield (
                    f"| {simulator} | {learner} | {hosts:,} | {outcome.steps_per_s:,.0f} | {outcome.full()} | "
                    f"{' | '.join(shares)} | {outcome.lag:,.0f} |"
                )


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"


def into_document(text: str, document: str) -> str:
    """The document with these tables in place of those that it has."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure this machine")
    parser.add_argument("--repeats", type=int, default=5, help="samples of each figure (default 5)")
    parser.add_argument(
        "--save", action="store_true", help="write results/scaling.json and the tables of docs/scaling.md"
    )
    arguments = parser.parse_args()
    config = paper_config()
    if arguments.measure:
        record = {"machine": machine(), "inputs": asdict(measure(config, arguments.repeats))}
    else:
        record = json.loads(RESULTS.with_suffix(".json").read_text())
    text = tables(Inputs(**record["inputs"]), config)
    print(json.dumps(record["inputs"]))
    print(text)
    if arguments.save:
        RESULTS.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
        DOCUMENT.write_text(into_document(text, DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
