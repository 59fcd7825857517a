"""The sleep of an external engine's process in one way, and the check that the engine did what it
says.

Owns the calls of an engine's API, and the proof that a woken model still answers, by whichever way
it slept. Must not know the fields of one engine, frames, nor when it sleeps.
"""

from __future__ import annotations

from array import array
from typing import Final, Protocol, final

from protocol.errors import HttpError
from protocol.sampling import SamplingParams
from workers.bridge.driver_sleep import DriverSleep
from workers.bridge.engine_client import EngineClient, EngineRefusal
from workers.bridge.readiness import StopText
from workers.external import (
    AnswerPiece,
    EngineApi,
    EngineError,
    ExternalAnswer,
    HttpRequest,
    SleepCalls,
)

_OK: Final = 200
_PROOF_IDS: Final = tuple(range(1, 17))
_PROOF_TOKENS: Final = 2
"""One by a prompt and one by a decode, which may replay a captured graph."""


class SleepWay(Protocol):
    """How an engine's memory leaves the device and comes back. Each call returns why it failed, ""
    if the engine says that it succeeded. The calls may raise `HttpError`.
    """

    @property
    def name(self) -> str:
        """The name of the way, for people and for the record of ways that were tried."""
        ...

    @property
    def note(self) -> str:
        """The duration of the last call in words for people; "" if unknown."""
        ...

    async def refusal(self) -> str:
        """Why the engine cannot sleep in this way, as far as is known beforehand."""
        ...

    async def sleep(self) -> str: ...

    async def wake(self) -> str: ...

    async def close(self) -> None:
        """Give back what this way itself holds."""
        ...


@final
class ApiSleep:
    """The way of an engine that has an API for it."""

    note: Final = ""

    def __init__(self, client: EngineClient, calls: SleepCalls) -> None:
        self.name = calls.name
        self._client = client
        self._calls = calls

    async def refusal(self) -> str:
        """Why the engine cannot sleep, as the engine itself says."""
        return self._calls.refusal(await self._client.found(self._calls.targets))

    async def sleep(self) -> str:
        """See `SleepWay`."""
        return await self._call(self._calls.sleep, is_asleep=True)

    async def wake(self) -> str:
        """See `SleepWay`."""
        return await self._call(self._calls.wake, is_asleep=False)

    async def close(self) -> None:
        """Do nothing: the connections are the client's."""

    async def _call(self, request: HttpRequest, *, is_asleep: bool) -> str:
        status, text = await self._client.call(request)
        if status != _OK:
            return f"it answers POST {request.target} with {status} {text}".rstrip()
        said = self._calls.is_asleep(await self._client.found(self._calls.targets))
        if said is not None and said is not is_asleep:
            state = "asleep" if said else "awake"
            return f"it answers POST {request.target} with {status}, and says that it is {state}"
        return ""


@final
class EngineSleep:
    """Puts one engine to sleep and wakes it, by its API (`calls`) or another way."""

    def __init__(
        self, client: EngineClient, api: EngineApi, calls: SleepCalls | DriverSleep, text: StopText
    ) -> None:
        self._way: SleepWay = calls if isinstance(calls, DriverSleep) else ApiSleep(client, calls)
        self.name = self._way.name
        self._client = client
        self._api = api
        self._text = text
        self._answered: list[int] = []

    @property
    def note(self) -> str:
        """See `SleepWay`."""
        return self._way.note

    async def refusal(self) -> str:
        """Why the engine cannot sleep, as far as is known before; "" if it can."""
        try:
            return await self._way.refusal()
        except HttpError as error:
            return str(error)

    async def fall_asleep(self) -> str:
        """Put the engine to sleep; returns why it does not sleep, "" if it says that it does."""
        try:
            if not self._answered:
                self._answered = await self._tokens()
            return await self._way.sleep()
        except (EngineRefusal, EngineError, HttpError) as error:
            return str(error)

    async def wake(self) -> str:
        """Wake the engine; returns why it does not serve, "" if it answers as before.

        A server may answer 200 and have lost its weights (sgl-project/sglang#6367,
        fzyzcjy/torch_memory_saver#71). The first token is compared alone, because the later ones
        may differ with the shape of a batch.
        """
        try:
            if why := await self._way.wake():
                return why
            tokens = await self._tokens()
        except (EngineRefusal, EngineError, HttpError) as error:
            return str(error)
        if tokens[:1] != self._answered[:1]:
            return (
                f"it answers the same prompt with token {tokens[:1]} instead of "
                f"{self._answered[:1]}: its weights are not what they were"
            )
        return ""

    async def close(self) -> None:
        """Give back what the way holds."""
        await self._way.close()

    async def _tokens(self) -> list[int]:
        """The answer to a prompt that is always the same. Raises `EngineError` for none."""
        answer = ExternalAnswer(
            array("I", _PROOF_IDS),
            array("I"),
            SamplingParams(max_tokens=_PROOF_TOKENS, temperature=0.0, ignore_eos=True),
            seed=0,
            salt=b"",
            max_outputs=_PROOF_TOKENS,
            eos_ids=self._text.eos_ids,
            vocab_size=self._text.vocab_size,
        )
        tokens: list[int] = []

        def take(piece: AnswerPiece | None) -> None:
            tokens.extend(() if piece is None else piece.ids)

        await self._client.answer(self._api, answer, take)
        if not tokens:
            raise EngineError("it answers a prompt with no token")
        return tokens
