"""The trainer's side of the data: starts the streams, keeps their rows, deals out batches.

Owns the feeding processes, their directory and one thread that reads shards and builds batches
ahead. Fresh rows come first; when the streams are slower than the training, rows are used again,
each as often as the others. Must not know torch.
"""

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from training.feed import SAMPLE_STREAM
from training.pack import Batch, Capacity, Rows, choose_capacity, make_batch, skip_positions
from training.settings import Settings

_AHEAD: Final = 8
_POLL_S: Final = 0.05
_MAX_REJECTED: Final = 50


class FeedError(RuntimeError):
    """A stream has ended with an error, or gives rows that no batch can hold."""


class Supply:
    """Text for the tokenizer, then batches. A context: at its end all processes are gone.

    `max_tokens` bounds what is kept, hence how much different data is trained on.
    """

    def __init__(self, settings: Settings, seed: int, num_streams: int, max_tokens: int) -> None:
        self._settings = settings
        self._seed = seed
        self._num_streams = num_streams
        self._max_rows = max(settings.rows_per_batch, max_tokens // settings.row_length)
        self._out = Path(tempfile.mkdtemp(prefix="herma-training-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._batches: queue.Queue[Batch | Exception] = queue.Queue(maxsize=_AHEAD)
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._deal, name="batches", daemon=True)
        self._rows: list[Rows] = []
        self._fresh: deque[int] = deque()
        self._again: deque[int] = deque()
        self._counts: dict[str, tuple[int, int]] = {}
        self.num_rejected = 0
        self.num_repeated = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closing.set()
        for process in self._processes.values():
            process.kill()
            process.wait()
        if self._thread.ident is not None:
            self._thread.join()
        shutil.rmtree(self._out, ignore_errors=True)

    @property
    def num_tokens(self) -> int:
        """Different tokens seen so far."""
        return len(self._rows) * self._settings.row_length

    @property
    def dropped(self) -> float:
        """The share of the documents that were too long."""
        documents = sum(counts[0] for counts in self._counts.values())
        dropped = sum(counts[1] for counts in self._counts.values())
        return dropped / max(1, documents)

    def sample(self) -> list[str]:
        """Texts to train a tokenizer on: the same for the same seed. Takes seconds."""
        paths = [self._out / f"sample-{i}.json" for i in range(self._settings.sample_streams)]
        for index, path in enumerate(paths):
            number = str(self._settings.sample_examples)
            self._start(SAMPLE_STREAM + index, path, "--sample", number)
        for name, process in self._processes.items():
            if process.wait():
                raise self._failure(name)
        self._processes.clear()
        return [text for path in paths for text in json.loads(path.read_text(encoding="utf-8"))]

    def start(self, tokenizer_json: str) -> None:
        """Let the streams run and the batches be built."""
        (self._out / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
        sizes = (self._settings.row_length, self._settings.rows_per_shard)
        for index in range(self._num_streams):
            options = ("--row-length", str(sizes[0]), "--rows", str(sizes[1]))
            self._start(index, self._out, *options)
        self._thread.start()

    def next(self) -> Batch:
        """The next batch; waits for the first rows. Raises `FeedError`."""
        batch = self._batches.get()
        if isinstance(batch, Exception):
            raise batch
        return batch

    def _start(self, stream: int, out: Path, *options: str) -> None:
        arguments = ["--seed", str(self._seed), "--stream", str(stream), "--out", str(out)]
        name = f"stream-{stream}"
        environ = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        with self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "training.feed", *arguments, *options],
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environ,
            )

    def _log(self, name: str) -> Path:
        return self._out / f"{name}.log"

    def _failure(self, name: str) -> FeedError:
        tail = self._log(name).read_text(errors="replace").strip()[-2000:]
        return FeedError(f"{name} ended with code {self._processes[name].returncode}:\n{tail}")

    def _deal(self) -> None:
        """The thread: read what has come, build a batch, and so on."""
        try:
            capacity = choose_capacity(self._first_rows(), self._settings.rows_per_batch)
            random = np.random.default_rng(self._seed)
            while not self._is_closing.is_set():
                self._collect()
                self._put(self._build(capacity, random))
        except (FeedError, OSError, ValueError) as error:
            self._put(error)

    def _first_rows(self) -> Rows:
        wanted = max(self._settings.rows_per_batch, 2 * self._settings.rows_per_shard)
        while len(self._rows) < wanted and not self._is_closing.is_set():
            self._collect()
            time.sleep(_POLL_S)
        if not self._rows:
            raise FeedError("closed before the first rows")
        return np.stack(self._rows)

    def _collect(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None and not self._is_closing.is_set():
                raise self._failure(name)
        if len(self._rows) >= self._max_rows:
            return
        for path in sorted(self._out.glob("*.npz"), key=lambda path: path.name.split("-")[::-1]):
            with np.load(path) as shard:
                rows = shard["rows"]
                documents, dropped = shard["counts"].tolist()
            path.unlink()
            self._counts[path.name.split("-")[0]] = (documents, dropped)
            self._fresh.extend(range(len(self._rows), len(self._rows) + len(rows)))
            self._rows.extend(rows)

    def _build(self, capacity: Capacity, random: np.random.Generator) -> Batch:
        for _ in range(_MAX_REJECTED):
            batch = make_batch(np.stack(self._choose(random)), capacity)
            if batch is not None:
                settings = self._settings
                return skip_positions(batch, random, settings.skip_share, settings.skip_most)
            self.num_rejected += 1
        raise FeedError(f"{_MAX_REJECTED} batches in a row were over {capacity}")

    def _choose(self, random: np.random.Generator) -> list[Rows]:
        chosen: list[Rows] = []
        while len(chosen) < self._settings.rows_per_batch:
            if self._fresh:
                chosen.append(self._rows[self._fresh.popleft()])
                continue
            if not self._again:
                self._again.extend(random.permutation(len(self._rows)).tolist())
            chosen.append(self._rows[self._again.popleft()])
            self.num_repeated += 1
        return chosen

    def _put(self, item: Batch | Exception) -> None:
        while not self._is_closing.is_set():
            try:
                self._batches.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return
