"""The same without `async`; see `test_typing.py`. It is not run."""

from __future__ import annotations

from collections.abc import Iterator

import asyncparl.blocking as asyncparl


@asyncparl.remote_class
class Simulator:
    def __init__(self, game: str) -> None:
        self.game = game
        self.frames = 0

    def sample(self, n: int) -> list[int]:
        return list(range(n))

    def rollouts(self) -> Iterator[list[int]]:
        while True:
            yield self.sample(50)

    def use(self, other: asyncparl.Proxy) -> int:
        frames: int = other.frames.result()
        return frames

    def me(self) -> asyncparl.Proxy:
        return asyncparl.current_actor()


def main() -> None:
    with asyncparl.connect() as cluster:
        sims = [Simulator("pong") for _ in range(8)]
        calls = [sim.sample(50) for sim in sims]
        first = calls[0].result(timeout=5)
        sims[0].sample.options(timeout_s=5)(50).result()
        print(first, cluster.num_actors, cluster.describe().nodes)
        for call in asyncparl.as_completed(calls, timeout=5):
            print(call.result())
        results = asyncparl.gather(calls)
        print(len(results))
        for batch in sims[0].rollouts():
            print(batch)
        frames = sims[0].frames.result(5)
        print(frames, sims[0].use(sims[1]).result())
        asyncparl.set_attribute(sims[0], "frames", 0)
        asyncparl.close(sims[0])
        with Simulator("pong") as sim:
            sim.sample(1).result()
        asyncparl.kill(sims[1])
        Simulator.options(name="the simulator")("pong").sample(1).result()
        print(asyncparl.get_actor("the simulator"), asyncparl.expose(sims).pop())
    notebook = asyncparl.connect("host:8010", secret_file="secret")
    notebook.close()


main()
