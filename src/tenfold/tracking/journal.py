"""The journal of a run: what is to go to MLflow is first written to a file, and sent from there in the background.

So a store that is away, a kill or a power cut loses nothing, and a training waits for no store: what could not be
sent stays in the file, for the training that goes on, for the next start or for `tenfold sync`.

A line is a JSON object: `{"opened": {…}}` (by which process, for which store, experiment and name), `{"run": id}` (it
gets it all), `{"metrics": {…}, "step": …, "time": …}`, `{"tags": {…}}`, `{"end": status, "time": …, "why": …}`,
`{"sent": n}` (the first n bytes have arrived), `{"closed": true}` (no process writes any more).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tenfold import paths
from tenfold.tracking import store

if TYPE_CHECKING:
    from mlflow.entities import Metric

NAME = "journal.jsonl"
INTERVAL_S = 5.0
"""Time between two sendings: what the pages of MLflow may be behind. Few large ones take less of the processor."""
LONGEST_PAUSE_S = 30.0
"""Between two tries of a store that is away."""
LAST_WAIT_S = 15.0
"""How long the end of a run waits for a store that is away."""
ERROR = "tenfold.error"
"""Tag: why the run failed."""


def folder() -> Path:
    """Where journals lie that no resume folder holds: of runs without one, and what is still to be sent."""
    return paths.home() / ".tenfold" / "unsent"


def now_ms() -> int:
    """MLflow's clock."""
    return time.time_ns() // 1_000_000


class Journal:
    """An append-only file that feeds a run. Made again over the same file, it goes on where that one ends.

    Attributes:
        run_id: the run that it feeds; empty if there is none yet.
        last_steps: of each metric, the last step that an earlier process wrote.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.run_id = file, ""
        self.last_steps: dict[str, int] = {}
        self._earlier: set[tuple[str, int]] = set()
        self._sent = self._begin = self._size = 0
        self._lock, self._wake, self._closing = threading.Lock(), threading.Event(), threading.Event()
        self._epoch_ended = self._failing = self._gave_up = False
        self.is_open = False
        self._stream: BinaryIO | None = None
        for end, record in _records(file):
            self._size = end
            if record.get("run", self.run_id) != self.run_id:
                self.run_id, self._sent = record["run"], 0
            self._sent = record.get("sent", self._sent)
            self._begin = end if "opened" in record else self._begin
            self._earlier |= {(key, record["step"]) for key in record.get("metrics", {})}
        if file.exists():
            os.truncate(file, self._size)  # without a line that was cut off
        for key, step in self._earlier:
            self.last_steps[key] = max(step, self.last_steps.get(key, 0))
        self._thread = threading.Thread(target=self._work, name="tenfold-journal", daemon=True)

    def open(self, **facts: str) -> None:
        """Say who writes from now on. What ended before has not ended."""
        self._append({"opened": facts})
        self._begin = self._size
        self.is_open = True

    def feed(self, run_id: str) -> None:
        """Send to this run: all that it has not got yet."""
        if run_id != self.run_id:
            self.run_id, self._sent = run_id, 0
            self._append({"run": run_id})

    def start(self) -> None:
        """Begin to send in the background."""
        self._thread.start()

    def add_metrics(self, metrics: Mapping[str, float], step: int, epoch_ended: bool = False) -> None:
        """Add a point to each curve, but where an earlier process has done so, before it was interrupted.

        Args:
            metrics: by name; what MLflow takes in no name becomes `_`.
            step: place on the x-axis.
            epoch_ended: the file is made safe against a power cut, soon.
        """
        named = {re.sub(r"[^\w\-. :/]", "_", key): float(value) for key, value in metrics.items()}
        new = {key: value for key, value in named.items() if (key, step) not in self._earlier}
        if new:
            self._append({"metrics": new, "step": step, "time": now_ms()})
        self._epoch_ended |= epoch_ended

    def add_tags(self, tags: Mapping[str, str]) -> None:
        """Add tags."""
        self._append({"tags": dict(tags)})

    def flush(self, wait_s: float | None = None) -> bool:
        """Send everything now; whether it was sent before the time was over. That is waited for once."""
        if self._thread.ident is None:
            self.start()
        longest = 0.5 if self._gave_up else LAST_WAIT_S
        deadline, target = time.monotonic() + min(longest, longest if wait_s is None else wait_s), self._size
        while self._sent < target and time.monotonic() < deadline:
            self._wake.set()
            time.sleep(0.01)
        sent = self._sent >= target
        self._gave_up = not sent and (self._gave_up or wait_s is None)
        return sent

    def end(self, status: str, why: str = "") -> None:
        """End the run: `FINISHED`, or `FAILED` or `KILLED` and why."""
        self._append({"end": status, "time": now_ms(), "why": why})

    def close(self, wait_s: float | None = None, done: bool = True) -> bool:
        """End the sending; whether all was sent. If not, the journal is kept where `runs.tidy` finds it.

        Args:
            wait_s: how long to try; by default `LAST_WAIT_S`.
            done: the training is over, so the resume folder goes. It takes the journal along, and not before: a kill in
                between must find the run again.
        """
        sent = self.flush(wait_s)
        self._closing.set()
        self._wake.set()
        self._thread.join(1.0 if sent else 0.1)  # it may hang on a store; then it dies with the process
        self._append({"closed": True})
        self._make_safe()
        if self.file.parent == folder():
            if sent:
                self.file.unlink(missing_ok=True)
        elif done and not sent:
            folder().mkdir(parents=True, exist_ok=True)
            self.file = Path(shutil.copy(self.file, folder() / f"{self.run_id}.jsonl"))
        return sent

    def send_all(self) -> None:
        """Send what is left, in this thread; raises what the store or the network raises."""
        while self._send():
            pass

    def _append(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record).encode() + b"\n"
        with self._lock:
            if self._stream is None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                self._stream = self.file.open("ab")
            self._stream.write(line)
            self._stream.flush()
            self._size += len(line)

    def _make_safe(self) -> None:
        if self._stream:
            os.fsync(self._stream.fileno())

    def _work(self) -> None:
        pause = INTERVAL_S
        while not self._closing.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            try:
                if self._epoch_ended:
                    self._epoch_ended = False
                    self._make_safe()
                self.send_all()
                pause = INTERVAL_S
            except Exception as error:  # whatever a store or a network can come up with
                if not self._failing:
                    warnings.warn(
                        f"MLflow takes nothing; it is kept, and sent again: {store.reason(error)}", stacklevel=2
                    )
                self._failing = True
                pause = min(2 * pause, LONGEST_PAUSE_S)
                self._closing.wait(min(INTERVAL_S, 0.5))  # also where `flush` asks without a pause

    def _send(self) -> bool:
        """Send a batch; whether there was one. What arrived before is not doubled by the store."""
        from mlflow.entities import Metric

        points: list[Metric] = []
        tags: dict[str, str] = {}
        ended: dict[str, Any] = {}
        position = self._sent
        for position, record in _records(self.file, self._sent):
            time_ms, step = record.get("time", 0), record.get("step", 0)
            points += [Metric(key, value, time_ms, step) for key, value in record.get("metrics", {}).items()]
            tags |= record.get("tags", {})
            ended = record if "end" in record and position > self._begin else ended
            if len(points) >= store.METRICS_PER_BATCH:
                break
        if position == self._sent:
            return False
        store.log_points(self.run_id, points)
        store.set_tags(self.run_id, tags | ({ERROR: ended["why"]} if ended.get("why") else {}))
        if ended:
            store.client().set_terminated(self.run_id, ended["end"], ended["time"])
        self._sent = position
        if points or tags or ended:
            self._append({"sent": position})
        return True


def opened(file: Path) -> dict[str, str]:
    """What was said when a journal was opened last; `process` is empty if that has closed it."""
    facts: dict[str, str] = {}
    for _, record in _records(file):
        facts = record.get("opened", facts) | ({"process": ""} if "closed" in record else {})
    return facts


def _records(file: Path, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of a journal from a byte on, each with where it ends, up to one that was cut off."""
    if not file.exists():
        return
    with file.open("rb") as stream:
        stream.seek(start)
        for line in stream:
            start += len(line)
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict):
                yield start, record
            else:
                warnings.warn(f"{file}: a damaged line ends at byte {start}; it is passed over", stacklevel=2)
