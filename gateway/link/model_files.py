"""The text files of models: tokenizers and chat templates.

Owns the files that workers sent for `GetFiles`, by digest, the check that they fit it, and the
`ModelText` that is built from them once and outlives the worker. Must not know workers.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from gateway.api import ApiError, unavailable
from gateway.prompt import ModelText, read_model_text
from protocol.errors import ConfigError
from protocol.files_digest import files_digest
from protocol.ids import WorkerId

_log: Final = logging.getLogger(__name__)

MAX_FILES_BYTES: Final = 32 * 2**20
MAX_DIGESTS: Final = 64
"""Beyond this many digests the least recently used one is forgotten."""
MAX_TEMPLATES: Final = 16
"""The most templates of the configuration that are kept for one set of files: each reload may bring
another.
"""
WAIT_S: Final = 10.0
LOOK_AGAIN_S: Final = 0.25


class FalseFilesError(Exception):
    """Files do not fit the digest under which a worker named them."""


class _Entry:
    """The text of the model of one set of files; `others` has it with other templates, by their
    source.
    """

    __slots__ = ("arrived", "built", "error", "lock", "others", "text")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.built = trio.Event()
        self.text: ModelText | None = None
        self.error: ConfigError | None = None
        self.others: dict[str, ModelText] = {}
        self.lock = trio.Lock()


class ModelTexts:
    """A map from digest to `ModelText`. `run` builds each in a thread: a tokenizer takes over 100
    ms. `on_built` is called with each built `ModelText`, `on_false` with the sender and the digest
    of files that do not match the digest, which are dropped. The callbacks must not wait or raise.
    """

    def __init__(self) -> None:
        self.on_built: Callable[[bytes, ModelText], None] | None = None
        self.on_false: Callable[[WorkerId, bytes], None] = lambda _sender, _digest: None
        self._entries: dict[bytes, _Entry] = {}
        self._latest: _Entry | None = None
        self._send, self._receive = trio.open_memory_channel[
            tuple[WorkerId, bytes, _Entry, Mapping[str, bytes]]
        ](MAX_DIGESTS)

    def __contains__(self, digest: bytes) -> bool:
        entry = self._entries.get(digest)
        return entry is not None and entry.arrived.is_set()

    def put(self, sender: WorkerId, digest: bytes, files: Mapping[str, bytes]) -> None:
        """Take files that arrived. Raises `ConfigError` if they are over 32 MiB, or if the files of
        `MAX_DIGESTS` models wait to be built.
        """
        if digest in self:
            return
        num_bytes = sum(map(len, files.values()))
        if num_bytes > MAX_FILES_BYTES:
            raise ConfigError(f"a model's text files have {num_bytes} bytes; 32 MiB are taken")
        entry = self._entry(digest)
        try:
            self._send.send_nowait((sender, digest, entry, files))
        except trio.WouldBlock as error:
            raise ConfigError(f"the text files of {MAX_DIGESTS} models wait already") from error
        entry.arrived.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Build a `ModelText` of each set of files that arrives, until cancelled."""
        task_status.started()
        async for sender, digest, entry, files in self._receive:
            try:
                entry.text = await trio.to_thread.run_sync(
                    partial(_checked_text, digest, files), abandon_on_cancel=True
                )
            except FalseFilesError:
                entry.arrived = trio.Event()  # another worker may send the right ones
                self.on_false(sender, digest)
                continue
            except ConfigError as error:
                _log.error("a worker's model cannot be used: %s", error)
                entry.error = error
            else:
                for remark in entry.text.remarks:
                    _log.warning("a model's text files: %s", remark)
            entry.built.set()
            if entry.text is not None and self.on_built is not None:
                self.on_built(digest, entry.text)

    def known(self, digest: bytes, template: str | None = None) -> ModelText | None:
        """The tokenizer of that digest, with its own template or that source; None if they are not
        built yet.
        """
        entry = self._entries.get(digest)
        if entry is None or entry.text is None:
            return None
        if entry is not self._latest:
            self._entry(digest)
        return entry.text if template is None else entry.others.get(template)

    async def text(self, digest: bytes) -> ModelText:
        """Wait for the tokenizer and template of that digest.

        Raises `ApiError` 503 if they are not built within 10 s, 500 if the files are broken.
        """
        text = await self.text_while(digest, lambda: True)
        assert text is not None
        return text

    async def text_while(
        self, digest: bytes, is_coming: Callable[[], bool], template: str | None = None
    ) -> ModelText | None:
        """Like `text`, with this template if one is given, but returns None once `is_coming`
        returns False, because then no worker will send the files.
        """
        entry = self._entry(digest)
        with trio.move_on_after(WAIT_S):
            while not entry.built.is_set():
                if not entry.arrived.is_set() and not is_coming():
                    return None
                with trio.move_on_after(LOOK_AGAIN_S):
                    await entry.built.wait()
        if entry.text is not None:
            return entry.text if template is None else await _other(entry, entry.text, template)
        if entry.error is not None:
            raise ApiError(500, f"The model cannot be used: {entry.error}") from entry.error
        raise unavailable("The model's tokenizer has not arrived from its worker yet.", 1)

    def _entry(self, digest: bytes) -> _Entry:
        entry = self._entries.pop(digest, None) or _Entry()
        if len(self._entries) >= MAX_DIGESTS:
            del self._entries[next(iter(self._entries))]
        # A dict keeps the order of insertion: the first is the least recently used.
        self._entries[digest] = self._latest = entry
        return entry


def _checked_text(digest: bytes, files: Mapping[str, bytes]) -> ModelText:
    if files_digest(files) != digest:
        raise FalseFilesError
    return read_model_text(files)


async def _other(entry: _Entry, text: ModelText, template: str) -> ModelText:
    """The text with another template, compiled once in a thread (80 ms)."""
    async with entry.lock:
        if template not in entry.others:
            compile_it = partial(text.with_template, template)
            try:
                made = await trio.to_thread.run_sync(compile_it, abandon_on_cancel=True)
            except ConfigError as error:
                raise ApiError(500, f"The model cannot be used: {error}") from error
            for remark in made.remarks:
                _log.warning("a model's own chat_template: %s", remark)
            if len(entry.others) >= MAX_TEMPLATES:
                del entry.others[next(iter(entry.others))]
            entry.others[template] = made
    return entry.others[template]
