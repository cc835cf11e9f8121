"""What a worker has answered, and its peers have not taken yet, when its process is about to end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from asyncparl.runtime.link import Link
from asyncparl.runtime.stopping import LAST_ANSWERS_PAUSE_S


class LastAnswers:
    """The links of a process over which it answers. Small answers leave at once; large ones take their time."""

    def __init__(self) -> None:
        self._links: set[Link] = set()

    @contextlib.contextmanager
    def of(self, link: Link) -> Iterator[None]:
        """This link is served. In the event loop."""
        self._links.add(link)
        try:
            yield
        finally:
            self._links.discard(link)

    def wait_taken(self) -> None:
        """Until the peers have taken all that was answered, as far as they go on taking it. Not in the event loop."""
        for link in tuple(self._links):
            taken, num_before = threading.Event(), link.core.num_fragments_sent
            link.call_when_quiet(taken.set)
            while not taken.wait(LAST_ANSWERS_PAUSE_S):
                num_sent = link.core.num_fragments_sent
                if num_sent == num_before:
                    break
                num_before = num_sent
