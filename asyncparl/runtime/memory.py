"""How much memory workers have of their own: what `max_memory` limits."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from asyncparl.runtime.zygote import mark_of

_NO_MARKS: Mapping[str, int] = {}


def memory_of_groups(group_ids: Collection[int], marks: Mapping[str, int] = _NO_MARKS) -> dict[int, int]:
    """The bytes that the processes of each group have for themselves. Blocks for some milliseconds.

    What they share with others does not count: the libraries that they have from the process they were forked from.

    Args:
        group_ids: each is also the pid of the process that leads the group. All of its descendants count.
        marks: by what `mark_of` says also those are known that have neither the group nor a living parent any more.
    """
    import psutil  # only where somebody has set a limit

    used = dict.fromkeys(group_ids, 0)
    parents = dict[int, int]()
    for pid in psutil.pids():
        try:
            parents[pid] = psutil.Process(pid).ppid()
        except psutil.Error:
            pass  # it has just ended
    for pid in parents:
        try:
            group_id = _group_of(pid, used, parents)
            if group_id is None and marks:
                group_id = marks.get(mark_of(pid) or "")
            if group_id is not None:
                used[group_id] += psutil.Process(pid).memory_full_info().uss
        except (ProcessLookupError, psutil.Error):
            pass  # it has just ended, or belongs to another user
    return used


def _group_of(pid: int, group_ids: Collection[int], parents: Mapping[int, int]) -> int | None:
    group_id = os.getpgid(pid)
    if group_id in group_ids:
        return group_id
    ancestor: int | None = pid
    for _ in parents:  # a pid that was reused meanwhile could make a circle
        if not ancestor or ancestor in group_ids:
            return ancestor or None
        ancestor = parents.get(ancestor)
    return None
