"""How much memory workers have of their own: what `max_memory` limits."""

from __future__ import annotations

import os
from collections.abc import Collection


def memory_of_groups(group_ids: Collection[int]) -> dict[int, int]:
    """The bytes that the processes of each group have for themselves. Blocks for some milliseconds.

    What they share with others does not count: the libraries that they have from the process they were forked from.
    """
    import psutil  # only where somebody has set a limit

    used = dict.fromkeys(group_ids, 0)
    for pid in psutil.pids():
        try:
            group_id = os.getpgid(pid)
            if group_id in used:
                used[group_id] += psutil.Process(pid).memory_full_info().uss
        except (ProcessLookupError, psutil.Error):
            pass  # it has just ended, or belongs to another user
    return used
