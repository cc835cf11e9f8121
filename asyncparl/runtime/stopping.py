"""How actors are stopped: one ladder of three rungs. Here are its rules and its limits; each rung is where it belongs.

| rung    | what is done                                                     | how long, before the next one           |
|---------|------------------------------------------------------------------|-----------------------------------------|
| ask     | `CLOSE`: answer everything that was called before, then exit     | as long as its caller waits (a Trio     |
|         |                                                                  | timeout); once answered `EXIT_LIMIT_S`  |
| SIGTERM | to its process group; the actor's code sees `SystemExit`, so     | the grace of the one who stops it       |
|         | that `finally` and `with` get their chance                       |                                         |
| SIGKILL | to its process group, until the worker is reaped                 | `KILL_LIMIT_S`; then it is given up     |

| who stops it                                     | enters at | grace                            |
|--------------------------------------------------|-----------|----------------------------------|
| `close`, the end of an actor's `async with`      | ask       | `CLOSE_GRACE_S`                  |
| the end of a group, `ASK_LIMIT_S` for the asking | ask       | `CLOSE_GRACE_S`                  |
| the end of a `connect()` block                   | SIGTERM   | `SESSION_GRACE_S`                |
| a group that starts its members again            | SIGTERM   | `CLOSE_GRACE_S`                  |
| a node that has lost the actor's owner           | SIGTERM   | `LINK_LOST_GRACE_S`              |
| a node that is stopped                           | SIGTERM   | `DRAIN_GRACE_S`                  |
| `kill`; what is too late or takes too much       | SIGKILL   |                                  |

The owner asks, in `actor.py`. The node signals: `protocol/membership.py` has the deadlines, `workers.py` keeps them;
only the zygote, the parent of the worker, sends signals. Grandchildren get both signals with the worker, in whose
process group they are; what is left of the group when the worker has ended, however it ended, is killed. Who waits
for a zygote that still imports gets no grace; if all who wait for it are to end, then the zygote is killed.

A second Ctrl-C ends the wait at the end of a `connect()` block, whichever rung it is at. Then the node of a private
cluster ends, and with it its zygotes and workers; other nodes have lost the owner.

SIGKILL reaches a stopped process (SIGSTOP) too. A zygote, or the node of a private cluster, that was stopped is made to
go on (SIGCONT) where something must end: at SIGKILL, when its socket is closed, and by the kernel when its parent ends.
"""

from __future__ import annotations

import signal

TERMINATED = 128 + signal.SIGTERM
"""The exit code of a worker that SIGTERM has ended: for it, it is an exception, so that `finally` gets its chance."""
ASK_LIMIT_S = 5.0
"""What was called before may take so long, at the end of a group."""
EXIT_LIMIT_S = 5.0
"""For a worker that has answered everything: its `atexit` functions run."""
LAST_ANSWERS_PAUSE_S = 1.0
"""A worker that exits by itself waits for its large answers to be taken, as long as something moves so often."""
CLOSE_GRACE_S = 1.0
SESSION_GRACE_S = 1.0
SESSION_LIMIT_S = 10.0
"""For all of a session's actors; what is left then loses its owner."""
OUTPUT_GRACE_S = 1.0
"""For a reader of what actors have printed, before a `connect()` block ends without it."""
DETACHED_LIMIT_S = 5.0
"""For the detached actors of a session that are not made yet: later nobody can make them."""
UNMADE_LIMIT_S = 4.0
"""For those of an actor that ends; less than it has for its exit."""
TERMINATED_WAIT_S = 0.8 * SESSION_GRACE_S
"""The same after SIGTERM: SIGKILL follows."""
LAST_OUTPUT_LIMIT_S = 0.5
"""For what an actor says at last. Its node reads all the time, unless it hangs."""
LINK_LOST_GRACE_S = 0.5
"""Nobody waits for what the actor does."""
DRAIN_GRACE_S = 2.0
OBJECT_LIMIT_S = 60.0
"""For a worker to be told what object to make. Who has started it may be gone; a detached one ends with nobody."""
KILL_LIMIT_S = 10.0
"""SIGKILL ends everything but a process that waits for a broken disk, and nobody waits for that one."""
REPORT_LIMIT_S = 2.0
"""How long a lost link waits for the node to say why."""
