"""A file of curves for TensorBoard. What cannot be written is raised where it is added.

TensorBoard's own writer has a thread, which meets a full disk minutes later: it prints a traceback and ends.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

_VERSION = "brain.Event:2"


class EventFile:
    """Open for writing. Points are in the file before it is closed.

    Args:
        folder: of the run, whose earlier files stay.
        purge_step: a run is resumed: TensorBoard forgets points at this step and later in the earlier files.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, *, purge_step: int | None) -> None:
        self._file = _new_file(folder)
        self._records = RecordWriter(self._file)
        events = [Event(file_version=_VERSION)]
        if purge_step is not None:
            events.append(Event(step=purge_step, file_version=_VERSION))
            events.append(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))
        try:
            self._write(*events)
        except BaseException:
            self._file.close()
            raise

    def add(self, scalars: Mapping[str, float], *, step: int) -> None:
        """A point of each curve.

        Raises:
            OSError: it cannot be written now. The next call tries it again.
        """
        values = [Summary.Value(tag=curve, simple_value=value) for curve, value in scalars.items()]
        self._write(Event(step=step, summary=Summary(value=values)))

    def _write(self, *events: Event) -> None:
        for event in events:
            event.wall_time = time.time()
            self._records.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        """May be called twice."""
        self._file.close()


def _new_file(folder: Path) -> BinaryIO:
    """TensorBoard reads the files of a folder in the order of their names."""
    name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
    number = 0
    while (path := folder / f"{name}.{number}").exists():
        number += 1
    return path.open("xb")
