"""The figures for Prometheus. Actors come and go, so they are summed up by class and node; their number is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

import asyncparl
from asyncparl.monitor.observer import Observer
from asyncparl.monitor.picture import NodeRow, Picture
from asyncparl.monitor.runs import is_number
from asyncparl.monitor.totals import Total
from asyncparl.protocol.figures import NUM_BUCKETS, bucket_limit_s

MAX_NODES = 1000
"""That have figures of their own."""

_STATES = ("waiting", "starting", "running", "silent")

_RUN_FIGURES = {
    "agent_steps": ("asyncparl_run_agent_steps", "Agent steps that the run has learned from."),
    "updates": ("asyncparl_run_updates", "Updates of the learner."),
    "episodes": ("asyncparl_run_episodes", "Episodes that have ended."),
    "elapsed_s": ("asyncparl_run_elapsed_seconds", "How long the run has gone on."),
    "steps_per_s": ("asyncparl_run_agent_steps_per_second", "Agent steps learned from."),
    "mean_return": ("asyncparl_run_return", "Mean return of the last episodes."),
    "mean_lag": ("asyncparl_run_policy_lag_updates", "Updates between acting and learning weights, mean."),
    "policy_delay_s": (
        "asyncparl_run_policy_delay_seconds",
        "From the publication of weights to an actor's first step with them, median.",
    ),
    "batch_age_s": ("asyncparl_run_batch_age_seconds", "From the first rollout of a batch to its update, mean."),
    "batches_waiting": ("asyncparl_run_batches_waiting", "Batches that the learner has not taken."),
    "rollouts_waiting": ("asyncparl_run_rollouts_waiting", "Rollouts without room in a batch."),
    "actors": ("asyncparl_run_actors", "Actors at work."),
    "actor_restarts": ("asyncparl_run_actor_restarts", "Actors that were replaced."),
}
_LEARNER_SHARES = ("waiting", "copying", "computing")


class _Collector:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def collect(self) -> Iterator[Metric]:
        picture = self._observer.picture
        yield InfoMetricFamily("asyncparl_monitor", "The monitor.", value={"version": asyncparl.__version__})
        yield _gauge("asyncparl_up", "Whether the master answers.", not picture.fault)
        yield from _cluster(picture)
        nodes = sorted(picture.nodes.values(), key=lambda node: node.name)[:MAX_NODES]
        yield from _nodes(nodes)
        yield from _gpus(nodes)
        yield from _calls(self._observer.totals.by_class)
        yield from _runs(self._observer)


def exposition(observer: Observer) -> tuple[bytes, str]:
    """The text, and what it is."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(observer))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _cluster(picture: Picture) -> Iterator[Metric]:
    nodes = GaugeMetricFamily("asyncparl_nodes", "Nodes, by state.", labels=["state"])
    states = Counter(node.state for node in picture.nodes.values())
    for state in ("ready", "draining", "disconnected"):
        nodes.add_metric([state], states[state])
    yield nodes
    actors = GaugeMetricFamily("asyncparl_actors", "Actors, by state.", labels=["state"])
    counts = Counter(actor.state for actor in picture.actors.values())
    for state in _STATES:
        actors.add_metric([state], counts[state])
    yield actors
    yield _gauge("asyncparl_programs", "Programs that are connected.", len(picture.programs))
    yield _gauge("asyncparl_alarms", "What somebody should look at.", len(picture.alarms))


def _nodes(nodes: list[NodeRow]) -> Iterator[Metric]:
    figures: list[tuple[str, str, Any]] = [
        ("asyncparl_node_cpu_busy_ratio", "Of the machine's CPUs.", lambda node: node.cpu_share),
        ("asyncparl_node_cpus_leased", "CPUs that actors have.", lambda node: node.used_cpus),
        ("asyncparl_node_cpus_offered", "CPUs that actors may have.", lambda node: node.total_cpus),
        ("asyncparl_node_memory_used_bytes", "Of the machine.", lambda node: node.used_memory_bytes),
        ("asyncparl_node_memory_total_bytes", "Of the machine.", lambda node: node.total_memory_bytes),
        ("asyncparl_node_actors", "Actors that have a place there.", lambda node: node.num_actors),
        ("asyncparl_node_gpus_leased", "GPUs that actors have.", lambda node: sum(node.used_gpus)),
    ]
    for name, text, value_of in figures:
        family = GaugeMetricFamily(name, text, labels=["node"])
        for node in nodes:
            if (value := value_of(node)) is not None:
                family.add_metric([node.name], value)
        yield family


def _gpus(nodes: list[NodeRow]) -> Iterator[Metric]:
    for name, text, key in [
        ("asyncparl_gpu_busy_ratio", "Of the time, that the GPU computed.", "busy_share"),
        ("asyncparl_gpu_memory_used_bytes", "Memory in use.", "used"),
        ("asyncparl_gpu_memory_total_bytes", "Memory there is.", "total"),
    ]:
        family = GaugeMetricFamily(name, text, labels=["node", "gpu"])
        for node in nodes:
            for index, gpu in enumerate(node.gpus):
                family.add_metric([node.name, str(index)], gpu[key])
        yield family


def _calls(totals: dict[tuple[str, str], Total]) -> Iterator[Metric]:
    labels = ["class", "node"]
    durations = HistogramMetricFamily("asyncparl_call_duration_seconds", "How long methods ran.", labels=labels)
    failed = CounterMetricFamily("asyncparl_calls_failed", "Calls that raised.", labels=labels)
    busy = CounterMetricFamily("asyncparl_calls_busy_seconds", "Time that methods ran in actors.", labels=labels)
    for key, total in totals.items():
        # Their sum is that of busy actors; that of `async` methods, which overlap, is not measured.
        durations.add_metric(list(key), buckets=_buckets(total.durations), sum_value=total.busy_s)
        failed.add_metric(list(key), total.num_failed)
        busy.add_metric(list(key), total.busy_s)
    yield from (durations, failed, busy)


def _buckets(counts: Iterable[int]) -> list[Any]:
    """Every second one of ours is enough, and of the shortest none."""
    buckets: list[Any] = []
    sum_so_far = 0
    for bucket, count in enumerate(counts):
        sum_so_far += count
        if bucket % 2 == 0 and 4 <= bucket <= 26:
            buckets.append((f"{bucket_limit_s(bucket):g}", sum_so_far))
    return [*buckets, ("+Inf", sum_so_far)]


def _runs(observer: Observer) -> Iterator[Metric]:
    runs = [run for run in observer.picture.runs.values() if not run.is_over]
    labels = ["run", "program"]
    names = [[str(run.values.get("title") or run.program), run.program] for run in runs]
    for field, (name, text) in _RUN_FIGURES.items():
        family = GaugeMetricFamily(name, text, labels=labels)
        for run, label in zip(runs, names, strict=True):
            if is_number(value := run.values.get(field)):
                family.add_metric(label, float(value))
        yield family
    shares = GaugeMetricFamily("asyncparl_run_learner_ratio", "Of the learner's time.", labels=[*labels, "activity"])
    losses = GaugeMetricFamily("asyncparl_run_loss", "What the algorithm said last.", labels=[*labels, "name"])
    for run, label in zip(runs, names, strict=True):
        for activity in _LEARNER_SHARES:
            if is_number(value := run.values.get(f"{activity}_share")):
                shares.add_metric([*label, activity], float(value))
        for key, value in run.values.items():
            if key.startswith("losses/") and is_number(value):
                losses.add_metric([*label, key.removeprefix("losses/")], float(value))
    yield from (shares, losses)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


assert NUM_BUCKETS > 26
