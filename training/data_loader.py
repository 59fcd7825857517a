"""The data loader: starts the shard writers, keeps their rows and builds batches.

Owns the writers' processes, their directory and one thread that reads shards and builds batches
ahead of the training. Fresh rows come first; when the writers are slower than the training, rows
repeat, each as often as the others. Must not know torch.
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

from training.pack import Capacity, Rows, TrainingBatch, choose_capacity, make_batch, skip_positions
from training.settings import TrainingSettings
from training.shard_writer import LONG_STREAM, SAMPLE_STREAM

_AHEAD: Final = 8
_POLL_S: Final = 0.05
_MAX_REJECTED: Final = 50
_STREAMS_PER_LONG: Final = 6
"""One stream in this many makes long conversations."""

_MAX_LONG_ROWS: Final = 2048


class DataLoaderError(RuntimeError):
    """A stream ended with an error, or its rows fit in no batch."""


class _Pool:
    """Rows of one length: fresh rows first, then each row as often as the others."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self.rows: list[Rows] = []
        self._fresh: deque[int] = deque()
        self._again: deque[int] = deque()
        self.num_repeated = 0

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= self._max_rows

    def add(self, rows: Rows) -> None:
        self._fresh.extend(range(len(self.rows), len(self.rows) + len(rows)))
        self.rows.extend(rows)

    def take(self, random: np.random.Generator) -> Rows:
        if self._fresh:
            return self.rows[self._fresh.popleft()]
        if not self._again:
            self._again.extend(random.permutation(len(self.rows)).tolist())
        self.num_repeated += 1
        return self.rows[self._again.popleft()]


class DataLoader:
    """Text for the tokenizer, then batches. A context manager: leaving it ends all processes.

    `max_tokens` bounds the rows kept, and with them how much distinct data is trained on.
    """

    def __init__(
        self, settings: TrainingSettings, seed: int, num_streams: int, max_tokens: int
    ) -> None:
        self._settings = settings
        self._seed = seed
        self._num_streams = num_streams
        self._out = Path(tempfile.mkdtemp(prefix="herma-training-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._batches: queue.Queue[TrainingBatch | Exception] = queue.Queue(maxsize=_AHEAD)
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._build_batches, name="batches", daemon=True)
        self._has_long = threading.Event()
        self._pool = _Pool(max(settings.rows_per_batch, max_tokens // settings.row_length))
        self._long_pool = _Pool(_MAX_LONG_ROWS)
        self._counts: dict[str, tuple[int, int]] = {}
        self.num_rejected = 0
        self.num_long = 0
        self._num_built = 0

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
        """Distinct tokens so far, without long rows."""
        return len(self._pool.rows) * self._settings.row_length

    @property
    def num_repeated(self) -> int:
        """How often a row, long or not, was repeated."""
        return self._pool.num_repeated + self._long_pool.num_repeated

    @property
    def dropped(self) -> float:
        """The share of documents that were too long."""
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
        """Start the streams and the thread that builds batches."""
        (self._out / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
        settings = self._settings
        num_long = max(1, self._num_streams // _STREAMS_PER_LONG)
        for index in range(max(1, self._num_streams - num_long)):
            self._start_rows(index, settings.row_length, settings.rows_per_shard)
        for index in range(LONG_STREAM, LONG_STREAM + num_long):
            least = ("--least", str(settings.long_least))
            self._start_rows(index, settings.long_length, settings.long_rows_per_shard, *least)
        self._thread.start()

    def begin_long(self) -> None:
        """From now on, every `long_every`-th batch ends with a long row."""
        self._has_long.set()

    def next(self) -> TrainingBatch:
        """The next batch; waits for the first rows. Raises `DataLoaderError`."""
        batch = self._batches.get()
        if isinstance(batch, Exception):
            raise batch
        return batch

    def _start_rows(self, stream: int, length: int, num_rows: int, *options: str) -> None:
        sizes = ("--row-length", str(length), "--rows", str(num_rows))
        self._start(stream, self._out, *sizes, *options)

    def _start(self, stream: int, out: Path, *options: str) -> None:
        arguments = ["--seed", str(self._seed), "--stream", str(stream), "--out", str(out)]
        name = f"stream-{stream}"
        environ = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        with self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "training.shard_writer", *arguments, *options],
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environ,
            )

    def _log(self, name: str) -> Path:
        return self._out / f"{name}.log"

    def _failure(self, name: str) -> DataLoaderError:
        tail = self._log(name).read_text(errors="replace").strip()[-2000:]
        return DataLoaderError(
            f"{name} ended with code {self._processes[name].returncode}:\n{tail}"
        )

    def _build_batches(self) -> None:
        """The thread: reads new shards, builds a batch, and repeats."""
        try:
            capacity = choose_capacity(self._first_rows(), self._settings.rows_per_batch)
            random = np.random.default_rng(self._seed)
            while not self._is_closing.is_set():
                self._collect()
                self._put(self._build(capacity, random))
        except (DataLoaderError, OSError, ValueError) as error:
            self._put(error)

    def _first_rows(self) -> Rows:
        wanted = max(self._settings.rows_per_batch, 2 * self._settings.rows_per_shard)
        while not self._is_closing.is_set():
            self._collect()
            if len(self._pool.rows) >= wanted and self._long_pool.rows:
                return np.stack(self._pool.rows)
            time.sleep(_POLL_S)
        raise DataLoaderError("closed before the first rows")

    def _collect(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None and not self._is_closing.is_set():
                raise self._failure(name)
        for path in sorted(self._out.glob("*.npz"), key=lambda path: path.name.split("-")[::-1]):
            stream = path.name.split("-")[0]
            pool = self._long_pool if int(stream[1:]) >= LONG_STREAM else self._pool
            if pool.is_full:
                continue
            with np.load(path) as shard:
                rows = shard["rows"]
                documents, dropped = shard["counts"].tolist()
            path.unlink()
            self._counts[stream] = (documents, dropped)
            pool.add(rows)

    def _build(self, capacity: Capacity, random: np.random.Generator) -> TrainingBatch:
        for _ in range(_MAX_REJECTED):
            rows, long_row = self._choose(random)
            batch = make_batch(rows, capacity, long_row)
            if batch is not None:
                settings = self._settings
                return skip_positions(batch, random, settings.skip_share, settings.skip_most)
            self.num_rejected += 1
        raise DataLoaderError(f"{_MAX_REJECTED} batches in a row were over {capacity}")

    def _choose(self, random: np.random.Generator) -> tuple[Rows, Rows | None]:
        """Ordinary rows, and a long one for the first batch, so that the code for it is compiled,
        and for some of those after `begin_long`."""
        settings = self._settings
        number = self._num_built
        self._num_built += 1
        count, long_row = settings.rows_per_batch, None
        if number == 0 or (self._has_long.is_set() and number % settings.long_every == 0):
            self.num_long += 1
            count -= settings.rows_per_long
            long_row = self._long_pool.take(random)
        return np.stack([self._pool.take(random) for _ in range(count)]), long_row

    def _put(self, item: TrainingBatch | Exception) -> None:
        while not self._is_closing.is_set():
            try:
                self._batches.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return
