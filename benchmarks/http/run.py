"""Runs the cells at all servers in turns.

Owns the order, the sizes of prompts by each server's count, and the warm-up. Must not know sockets
or tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Final

from benchmarks.http.answer import HttpAnswer
from benchmarks.http.client import Endpoint, RequestOptions, ServerConnections
from benchmarks.http.figures import RoundFigures, merge, round_figures
from benchmarks.http.workload import (
    PromptGenerator,
    PromptWords,
    Staggered,
    TokenScale,
    WorkloadCell,
    WorkloadRequest,
    server_order,
    token_scale,
)

_PROBE_WORDS: Final = (40, 640)
_PROBE_OUTPUT: Final = 4
_WARM_OUTPUT: Final = 16


@dataclass(frozen=True, slots=True)
class HttpPlan:
    """The servers, the cells and the number of rounds."""

    endpoints: tuple[Endpoint, ...]
    cells: tuple[WorkloadCell, ...]
    rounds: int
    seed: int
    words: PromptWords
    options: RequestOptions

    @property
    def num_turns(self) -> int:
        """How many times a server runs a cell."""
        return self.rounds * len(self.cells) * len(self.endpoints)


@dataclass(slots=True)
class ResultRow:
    """The rounds of each server in a cell, of all its requests or of a `part` of them."""

    cell: str
    part: str = ""
    rounds: dict[str, list[RoundFigures]] = field(default_factory=dict)


@dataclass(slots=True)
class Results:
    """`models` and `scales` are by server; a scale is None if the server reports no usage. `firsts`
    holds which server ran first, for each cell in each round.
    """

    plan: HttpPlan
    models: dict[str, str] = field(default_factory=dict)
    scales: dict[str, TokenScale | None] = field(default_factory=dict)
    rows: list[ResultRow] = field(default_factory=list)
    firsts: list[dict[str, str]] = field(default_factory=list)
    is_interrupted: bool = False

    def row(self, cell: str, part: str = "") -> ResultRow:
        """The row of that name; a new one if there is none."""
        for row in self.rows:
            if (row.cell, row.part) == (cell, part):
                return row
        self.rows.append(ResultRow(cell, part))
        return self.rows[-1]

    @property
    def num_errors(self) -> int:
        """Requests without a whole answer."""
        rows = [row for row in self.rows if not row.part]
        return sum(merge(rounds).num_errors for row in rows for rounds in row.rounds.values())


class HttpBench:
    """One run. `show_progress` receives the running part, `print_line` the figures of each turn,
    and `end_turn` is called after each. `results` grow turn by turn.
    """

    def __init__(
        self,
        plan: HttpPlan,
        show_progress: Callable[[str], None],
        print_line: Callable[[str], None],
        end_turn: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._show_progress = show_progress
        self._print_line = print_line
        self._end_turn = end_turn
        self._answers_s: dict[str, dict[str, float]] = {}
        self.results = Results(plan)

    async def run(self) -> None:
        """Run every cell at every server, round by round. Raises `ServerSilent` if a server does
        not serve.
        """
        plan = self._plan
        max_streams = max(cell.streams for cell in plan.cells)
        clients: dict[str, ServerConnections] = {}
        with ExitStack() as stack:
            for endpoint in plan.endpoints:
                client = stack.enter_context(
                    closing(ServerConnections(endpoint, plan.options, max_streams))
                )
                clients[endpoint.name] = client
                await self._calibrate(client)
            cells = ", ".join(cell.name for cell in plan.cells)
            self._print_line(
                f"turns: {plan.num_turns}, rounds: {plan.rounds}, cells: {cells}; warming up"
            )
            for cell in plan.cells:
                for client in clients.values():
                    await self._warm_up(client, cell)
            for round_index in range(plan.rounds):
                for cell_index, cell in enumerate(plan.cells):
                    names = server_order(list(clients), round_index, cell_index)
                    self.results.firsts.append({"cell": cell.name, "first": names[0]})
                    for name in names:
                        await self._measure(clients[name], cell, round_index)

    async def _calibrate(self, client: ServerConnections) -> None:
        """Find the model, and how many tokens the server counts for a word."""
        name = client.endpoint.name
        self._show_progress(f"{name}: sizing prompts")
        self.results.scales[name] = await sized(client, self._plan.words, str(self._plan.seed))
        self.results.models[name] = client.endpoint.model

    async def _warm_up(self, client: ServerConnections, cell: WorkloadCell) -> None:
        """Run as many streams as the cell has, once and with few tokens. Nothing of it is
        counted.
        """
        name = client.endpoint.name
        self._show_progress(f"{cell.name} {name}: warming up")
        chains = cell.chains(self._prompts(name, self._salt("warm", name, cell.name)))
        firsts = [chain[:1] for chain in chains[: cell.streams]]
        await client.load(firsts, cell.streams, _WARM_OUTPUT, lambda: None)

    async def _measure(
        self, client: ServerConnections, cell: WorkloadCell, round_index: int
    ) -> None:
        """Run one cell at one server."""
        name, plan, num_done = client.endpoint.name, self._plan, 0
        turn = f"round {round_index + 1}/{plan.rounds} {cell.name} {name}"

        def count_answer() -> None:
            nonlocal num_done
            num_done += 1
            self._show_progress(f"{turn} {num_done}/{cell.num_requests}")

        self._show_progress(turn)
        chains = cell.chains(self._prompts(name, self._salt(str(round_index), name, cell.name)))
        answers, cpu_s = await client.load(
            chains,
            cell.streams,
            plan.options.output_tokens,
            count_answer,
            self._starts_s(cell, round_index),
        )
        self._answers_s.setdefault(cell.name, {})[name] = median_answer_s(answers)
        figures = self._add(cell.name, "", name, [answer for _, answer in answers], cpu_s)
        for part in dict.fromkeys(one.part for chain in chains for one in chain if one.part):
            of_part = [answer for request, answer in answers if request.part == part]
            self._add(cell.name, part, name, of_part)
        self._end_turn()
        self._print_line(f"{turn}: {summary(figures)}")

    def _starts_s(self, cell: WorkloadCell, round_index: int) -> list[float]:
        """When the streams of a staggered cell begin: the same at every server, over the mean time
        of their answers in the lockstep cell before it.
        """
        if not isinstance(cell, Staggered):
            return []
        answers_s = self._answers_s[cell.base.name].values()
        salt = self._salt("starts", str(round_index), cell.name)
        return cell.starts_s(salt, sum(answers_s) / len(answers_s))

    def _add(
        self, cell: str, part: str, name: str, answers: Sequence[HttpAnswer], cpu_s: float = 0.0
    ) -> RoundFigures:
        figures = round_figures(answers, self._plan.options.output_tokens, cpu_s)
        self.results.row(cell, part).rounds.setdefault(name, []).append(figures)
        return figures

    def _prompts(self, name: str, salt: str) -> PromptGenerator:
        return PromptGenerator(self._plan.words, self.results.scales[name] or TokenScale(), salt)

    def _salt(self, *names: str) -> str:
        """A fresh salt: no round, server or cell has the prompts of another, so that a cache of
        whole prompts finds nothing, even one that two addresses share.
        """
        return "/".join((str(self._plan.seed), *names))


async def sized(client: ServerConnections, words: PromptWords, salt: str) -> TokenScale | None:
    """How many tokens the server counts for a word; None if it reports no usage. Sets the client's
    model if it has none. Raises `ServerSilent`.
    """
    if not client.endpoint.model:
        client.endpoint = replace(client.endpoint, model=await client.first_model())
    counts = []
    for num_words in _PROBE_WORDS:
        prompts = PromptGenerator(words, TokenScale(), f"{salt}/{num_words}")
        request = WorkloadRequest(({"role": "user", "content": prompts.text(num_words)},))
        answer = await client.ask(request, _PROBE_OUTPUT)
        counts.append(0 if answer.usage is None else answer.usage.prompt_tokens)
    return token_scale(*zip(_PROBE_WORDS, counts, strict=True)) if all(counts) else None


def median_answer_s(answers: Sequence[tuple[WorkloadRequest, HttpAnswer]]) -> float:
    """The median time of an answer from its request to its last content; 0 without answers."""
    whole = sorted(one.content_at[-1] - one.sent_at for _, one in answers if one.content_at)
    return whole[len(whole) // 2] if whole else 0.0


def summary(figures: RoundFigures) -> str:
    """One round of one cell in a line."""
    one = merge([figures])
    text = (
        f"{_number(one.tokens_per_s)} tok/s, first token {_number(one.first_ms_p50)} / "
        f"{_number(one.first_ms_p99)} ms, gap {_number(one.gap_ms_p50)} / "
        f"{_number(one.gap_ms_p99)} ms"
    )
    return "; ".join((text, *(f"{count} {kind}" for kind, count in one.errors.items())))


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
