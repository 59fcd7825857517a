"""Requests to vLLM, SGLang and llama-server, and their answers, as the stub engine speaks them."""

import json
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ConfigError
from protocol.grammars import form_of
from protocol.messages import Grammar, Submit, TokenLogprobs
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from tests.fakes.foreign_engine import EOS, EVENTS, Settings, next_id
from workers.external import (
    AnswerPiece,
    EngineApi,
    EngineError,
    EngineEventSplitter,
    EngineJob,
    EngineTrouble,
    ExternalAnswer,
    LlamaCppApi,
    Proof,
    SglangApi,
    VllmApi,
)
from workers.external.engine_api import json_object, positive

APIS: dict[str, type[VllmApi] | type[SglangApi] | type[LlamaCppApi]] = {
    "vllm": VllmApi,
    "sglang": SglangApi,
    "llama-cpp": LlamaCppApi,
}
KINDS = sorted(APIS)
PROMPT = [11, 12, 13, 14]
SCRIPT = [21, 22, 23, 24, 25, 26, 27]


def api_of(kind: str) -> EngineApi:
    return APIS[kind]()


def sampling(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 16, "temperature": 0.0, **fields})


def answer_to(
    params: SamplingParams, outputs: list[int] | None = None, grammar: Grammar | None = None
) -> ExternalAnswer:
    return ExternalAnswer(
        array("I", PROMPT),
        array("I", outputs or []),
        params,
        seed=7,
        salt=b"",
        max_outputs=params.max_tokens,
        eos_ids=frozenset({EOS}),
        vocab_size=None,
        grammar=grammar,
    )


def play(
    api: EngineApi, engine: Settings, answer: ExternalAnswer, piece_bytes: int = 1 << 20
) -> list[AnswerPiece]:
    """Run `answer` against the stub's events, as HTTP carries them, in pieces of that size."""
    pieces: list[AnswerPiece] = []
    while not answer.is_over:
        job = answer.next_job()
        body = json.loads(api.request(job).body)
        ids = body.get("input_ids") or body["prompt"]
        events = list(EVENTS[engine.kind](engine, body, ids))
        reader, splitter = api.reader(job), EngineEventSplitter()
        if job.streamed:
            text = "".join(
                f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n" for one in events
            )
            data = b": a comment\n\n" + text.encode()
            chunks = [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
            payloads = [one for chunk in chunks for one in splitter.feed(chunk)]
        else:
            payloads = [json.dumps(events[-1]).encode()]
        for payload in payloads:
            if answer.is_over or answer.has_gap:
                break
            if (event := reader.read(payload)) is not None and (piece := answer.take(event)):
                pieces.append(piece)
        assert answer.stream_ended() or not job.streamed
    return pieces


def ids_of(pieces: list[AnswerPiece]) -> list[int]:
    return [token_id for piece in pieces for token_id in piece.ids]


def expected(engine: Settings, prefix: list[int], most: int, stops: set[int]) -> list[int]:
    """What the model says after `prefix`, without the stop token."""
    made: list[int] = []
    while len(made) < most and (token_id := next_id(prefix + made, engine.answer)) not in stops:
        made.append(token_id)
    return made


@given(
    kind=st.sampled_from(KINDS),
    script=st.lists(st.integers(20, 90), max_size=12),
    most=st.integers(1, 20),
    num_before=st.integers(0, 6),
    stop_id=st.none() | st.integers(20, 90),
    flags=st.tuples(st.booleans(), st.booleans()),
    piece_bytes=st.integers(1, 400),
)
def test_the_tokens_are_the_models_whatever_the_pieces(
    *,
    kind: str,
    script: list[int],
    most: int,
    num_before: int,
    stop_id: int | None,
    flags: tuple[bool, bool],
    piece_bytes: int,
) -> None:
    """Any engine, any split of its stream, tokens left out, new or all ids in an event, any stop
    token, at any point of resumption: the outputs are the model's, each offset once, up to the
    limit or the stop token, which is counted and not sent.
    """
    engine = Settings(kind=kind, answer=script, partial=flags[0], skips=flags[1])
    stops = {EOS} | ({stop_id} if stop_id is not None else set())
    before = expected(engine, PROMPT, num_before, stops)
    params = sampling(max_tokens=most, stop_token_ids=() if stop_id is None else (stop_id,))
    answer = answer_to(params, before)
    pieces = play(api_of(kind), engine, answer, piece_bytes)
    whole = expected(engine, PROMPT + before, max(0, most - len(before)), stops)
    assert ids_of(pieces) == whole
    assert [at for one in pieces for at in range(one.offset, one.offset + len(one.ids))] == list(
        range(len(before), len(before) + len(whole))
    )
    is_full = len(before) + len(whole) >= most
    assert answer.reason == ("length" if is_full else "stop")
    assert answer.matched == (None if is_full else next_id(PROMPT + before + whole, script))
    assert answer.output_tokens == len(before) + len(whole) + (not is_full)


@pytest.mark.parametrize("kind", KINDS)
def test_cached_tokens_are_told(kind: str) -> None:
    """Cached tokens are reported, also when a stop token ends the answer before the engine does."""
    answer = answer_to(sampling())
    play(api_of(kind), Settings(kind=kind, answer=SCRIPT, cached=3), answer)
    assert answer.cached_tokens == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num", [0, 1, 2])
def test_logprobs_are_the_chosen_token_and_the_best(kind: str, num: int) -> None:
    """Log-probabilities are those of the chosen token and of as many best ones as asked for."""
    pieces = play(
        api_of(kind), Settings(kind=kind, answer=SCRIPT), answer_to(sampling(logprobs=num))
    )
    assert ids_of(pieces) == SCRIPT
    logprobs = [one for piece in pieces for one in piece.logprobs]
    best = [[(token_id, -0.5), (7, -1.5)][:num] for token_id in SCRIPT]
    assert logprobs == [TokenLogprobs(-0.5, tuple(tops)) for tops in best]


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_that_ignores_ids_is_named(kind: str) -> None:
    """Text without ids is an error, never an answer."""
    if kind == "sglang":
        pytest.skip("its /generate always returns ids")
    with pytest.raises(EngineError, match="ignores return_token"):
        play(api_of(kind), Settings(kind=kind, ignores_ids=True), answer_to(sampling()))


def test_an_sglang_that_returns_prompt_ids_is_named() -> None:
    """The count beside the ids shows it."""
    with pytest.raises(EngineError, match="ids of the prompt"):
        play(SglangApi(), Settings(kind="sglang", mixes_prompt=True), answer_to(sampling()))


def test_an_old_sglang_is_refused_by_version() -> None:
    """An old SGLang is refused by version, before any token was wrong."""
    info = msgspec.json.encode({"version": "0.5.5"})
    with pytest.raises(ConfigError, match=r"0\.5\.6 or later"):
        SglangApi().limits({"/get_server_info": info})
    SglangApi().limits({"/get_server_info": info.replace(b"0.5.5", b"0.5.12.post1")})


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_counted_otherwise_is_an_error(kind: str) -> None:
    """An engine that re-tokenises counts other tokens."""
    engine, api, answer = Settings(kind=kind), api_of(kind), answer_to(sampling())
    job = answer.next_job()
    body = json.loads(api.request(job).body)
    events = EVENTS[kind](engine, body, [1, *PROMPT])
    reader = api.reader(job)

    def read_all() -> None:
        for one in events:
            data = one.encode() if isinstance(one, str) else json.dumps(one).encode()
            if (event := reader.read(data)) is not None:
                answer.take(event)

    with pytest.raises(EngineError, match="counts 5 prompt tokens where 4 were sent"):
        read_all()


def test_ids_outside_the_vocabulary_name_the_tokenizer() -> None:
    """The engine has another model than the worker's directory."""
    answer = ExternalAnswer(
        array("I", PROMPT),
        array("I"),
        sampling(),
        seed=0,
        salt=b"",
        max_outputs=4,
        eos_ids=frozenset(),
        vocab_size=22,
    )
    with pytest.raises(EngineError, match="tokenizer of another model"):
        play(VllmApi(), Settings(answer=SCRIPT), answer)


def _submit(**fields: Any) -> Submit:
    return Submit(
        request_id=bytes(16),
        attempt=1,
        model="m",
        prompt_ids=pack_tokens(PROMPT),
        output_ids=b"",
        **{"sampling": sampling(), "seed": 0, **fields},
    )


def test_what_an_engine_cannot_do_is_named() -> None:
    """What an engine cannot do is named, and what it can do is not refused."""
    salted, adapted = _submit(salt=b"s"), _submit(adapter="a")
    repeated = _submit(sampling=sampling(repetition_penalty=3.0))
    assert [api_of(kind).refusal(_submit()) for kind in KINDS] == [None] * 3
    assert all("adapter" in str(api_of(kind).refusal(adapted)) for kind in KINDS)
    assert "private" in str(LlamaCppApi().refusal(salted))
    assert SglangApi().refusal(salted) is VllmApi().refusal(salted) is None
    assert "repetition_penalty" in str(SglangApi().refusal(repeated))


def _body(api: EngineApi, params: SamplingParams, salt: bytes = b"") -> Mapping[str, Any]:
    job = EngineJob(array("I", PROMPT), 5, params, 2**40 + 3, salt, frozenset())
    body: dict[str, Any] = json.loads(api.request(job).body)
    return body


def test_sampling_fields_are_translated() -> None:
    """All are written out: each engine has defaults of its own, some not neutral."""
    params = sampling(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, presence_penalty=0.2, frequency_penalty=0.3,
        repetition_penalty=1.1, stop_token_ids=(9,), ignore_eos=True,
    )  # fmt: skip
    shared = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.2}
    shared |= {"frequency_penalty": 0.3, "ignore_eos": True}
    vllm = _body(VllmApi(), params, b"\x01\xff")
    assert vllm.items() >= {**shared, "repetition_penalty": 1.1, "stop_token_ids": [9]}.items()
    assert vllm.items() >= {"prompt": PROMPT, "max_tokens": 5, "seed": 2**40 + 3}.items()
    assert vllm["cache_salt"] == "01ff"
    sglang = _body(SglangApi(), params, b"\x01\xff")
    assert sglang["sampling_params"].items() >= {**shared, "max_new_tokens": 5}.items()
    assert (sglang["sampling_params"]["sampling_seed"], sglang["extra_key"]) == (3, "01ff")
    llama = _body(LlamaCppApi(), params)
    assert llama.items() >= {**shared, "n_predict": 5, "repeat_penalty": 1.1}.items()
    assert llama["seed"] == (2**40 + 3) % (2**32 - 1)


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.0}])
def test_greedy_is_greedy_everywhere(fields: dict[str, float]) -> None:
    """`top_p` 0, which these engines refuse, means the same."""
    params = sampling(**fields)
    bodies = [_body(VllmApi(), params), _body(SglangApi(), params)["sampling_params"]]
    for body in [*bodies, _body(LlamaCppApi(), params)]:
        assert (body["temperature"], body["top_p"]) == (0.0, 1.0)


def test_a_resumed_draw_has_other_noise() -> None:
    """A resumed draw has other noise, so its tokens do not repeat the noise of the first ones."""
    params = sampling(temperature=1.0)
    seeds = {answer_to(params, outputs).next_job().seed for outputs in ([], [5], [5, 6])}
    assert len(seeds) == 3


@given(st.binary(max_size=60), st.integers(1, 5))
def test_any_bytes_split_the_same_way(data: bytes, size: int) -> None:
    """Whole or in pieces, and never an error but for what is read from it."""
    whole = EngineEventSplitter()
    parts = EngineEventSplitter()
    expect = whole.feed(data.replace(b"\r", b""))
    plain = data.replace(b"\r", b"")
    found = [one for at in range(0, len(plain), size) for one in parts.feed(plain[at : at + size])]
    assert found == expect
    assert parts.is_between == whole.is_between


@given(
    kind=st.sampled_from(KINDS), data=st.binary(max_size=40) | st.text(max_size=40).map(str.encode)
)
def test_garbage_is_an_engine_error(kind: str, data: bytes) -> None:
    """Whatever an engine sends is read, or is an error of the engine."""
    reader = api_of(kind).reader(answer_to(sampling()).next_job())
    try:
        reader.read(data)
    except EngineError as error:
        assert str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found = [place] if place else []
    for key, inner in pairs if isinstance(value, dict | list) else ():
        found += (
            _places(inner, (*place, key)) if isinstance(inner, dict | list) else [(*place, key)]
        )
    return found


@settings(max_examples=max(300, settings().max_examples))
@given(kind=st.sampled_from(KINDS), data=st.data(), value=JSON)
def test_a_wrong_field_is_an_engine_error_at_most(
    kind: str, data: st.DataObject, value: object
) -> None:
    """A wrong value in any place of an event gives tokens, or an error of the engine."""
    params = sampling(logprobs=2, max_tokens=3)
    api, answer = api_of(kind), answer_to(params)
    job = answer.next_job()
    made = EVENTS[kind](Settings(kind=kind), json.loads(api.request(job).body), PROMPT)
    events = json.loads(json.dumps(list(made)))
    reader = api.reader(job)
    changed = data.draw(st.sampled_from([at for at, one in enumerate(events) if one != "[DONE]"]))
    place = data.draw(st.sampled_from(_places(events[changed])))
    inner = events[changed]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    try:
        for one in events:
            payload = one.encode() if isinstance(one, str) else json.dumps(one).encode()
            if (event := reader.read(payload)) is not None:
                piece = answer.take(event)
                assert piece is None or pack_tokens(piece.ids)
    except EngineError as error:
        assert str(error)


def test_load_and_limits_come_from_the_engine() -> None:
    """Sums over labels; what is no number does not count."""
    metrics = (
        '# HELP x\nvllm:num_requests_running{engine="0"} 2.0\n'
        'vllm:num_requests_running{engine="1"} 3.0\nvllm:num_requests_waiting 1\n'
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 9\nvllm:num_requests_waiting NaN\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
    )
    api = VllmApi()
    assert api.load(metrics) == (5, 1)
    models = {"data": [{"id": "l", "parent": "b"}, {"id": "b", "max_model_len": 4096}]}
    limits = api.limits({"/metrics": metrics.encode(), "/v1/models": msgspec.json.encode(models)})
    assert (limits.context_length, limits.kv_tokens) == (4096, 1600)
    assert _body(api, sampling())["model"] == "b"
    slots = {"default_generation_settings": {"n_ctx": 512}, "total_slots": 4}
    llama = LlamaCppApi().limits({"/props": msgspec.json.encode(slots)})
    assert (llama.context_length, llama.max_seqs, llama.kv_tokens) == (512, 4, 2048)


OPEN, CLOSE = 91, 92
ENFORCED = [41, 42, 43, 44]
SCHEMA = '{"type": "object", "x-guidance": {"lenient": true}}'
PLAIN = {"type": "object"}
CHOICE = Grammar("lark", 'start: "a" | "b."\n')
EBNF = Grammar("lark", 'root ::= "a"')


@pytest.mark.parametrize(
    ("kind", "grammar", "field", "value"),
    [
        ("vllm", Grammar("json_schema", SCHEMA), "structured_outputs", {"json": PLAIN}),
        ("vllm", Grammar("regex", "a+"), "structured_outputs", {"regex": "a+"}),
        ("vllm", CHOICE, "structured_outputs", {"choice": ["a", "b."]}),
        ("vllm", EBNF, "structured_outputs", {"grammar": EBNF.text}),
        ("sglang", Grammar("json_schema", SCHEMA), "json_schema", json.dumps(PLAIN)),
        ("sglang", Grammar("regex", "a+"), "regex", "a+"),
        ("sglang", CHOICE, "regex", r"(a|b\.)"),
        ("sglang", EBNF, "ebnf", EBNF.text),
        ("llama-cpp", Grammar("json_schema", SCHEMA), "json_schema", PLAIN),
        ("llama-cpp", CHOICE, "grammar", 'root ::= "a" | "b."'),
        ("llama-cpp", EBNF, "grammar", EBNF.text),
    ],
)
def test_a_grammar_is_in_the_engines_own_fields(
    kind: str, grammar: Grammar, field: str, value: Any
) -> None:
    """vLLM's StructuredOutputsParams, SGLang's SamplingParams, llama-server's README."""
    api = api_of(kind)
    assert form_of(grammar.kind, grammar.text) in api.grammar_forms
    body = json.loads(api.request(answer_to(sampling(), grammar=grammar).next_job()).body)
    assert body.get("sampling_params", body)[field] == value


def test_what_an_engine_has_no_field_for_is_not_among_its_forms() -> None:
    """Lark beyond a choice; regular expressions on llama-server; all before vLLM 0.11."""
    assert not any("lark" in api_of(kind).grammar_forms for kind in KINDS)
    assert "regex" not in LlamaCppApi().grammar_forms
    old = VllmApi()
    old.limits({"/version": b'{"version": "0.10.2"}'})
    assert not old.grammar_forms


@given(
    kind=st.sampled_from(KINDS),
    thinks=st.booleans(),
    has_opening=st.booleans(),
    num_before=st.integers(0, 9),
    skips=st.booleans(),
    most=st.integers(1, 12),
)
def test_a_grammar_begins_behind_the_reasoning(
    *, kind: str, thinks: bool, has_opening: bool, num_before: int, skips: bool, most: int
) -> None:
    """Whether the model thinks or not, at any point of resumption, also where the engine leaves
    tokens out: reasoning is free, what follows is ruled, no token comes twice.
    """
    free = [OPEN, 31, 32, CLOSE] if has_opening else [31, 32, CLOSE]
    free = free if thinks or not has_opening else []
    whole = [*free, *ENFORCED]
    engine = Settings(kind=kind, answer=[*free, 33, 34], enforced=ENFORCED, skips=skips)
    grammar = Grammar("json_schema", SCHEMA, CLOSE, OPEN if has_opening else None)
    before = whole[:num_before]
    answer = answer_to(sampling(max_tokens=most), before[:most], grammar)
    pieces = play(api_of(kind), engine, answer)
    assert [*before[:most], *ids_of(pieces)] == whole[:most]
    assert answer.reason == ("length" if most <= len(whole) else "stop")


def test_another_answer_inside_a_grammar_is_no_continuation() -> None:
    """What was sent cannot be taken back, and no engine goes on in the middle of a grammar."""
    engine = Settings(kind="vllm", enforced=ENFORCED)
    answer = answer_to(sampling(), [41, 50], Grammar("regex", "a+"))
    with pytest.raises(EngineError, match="otherwise than before"):
        play(VllmApi(), engine, answer)


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff\xfe", b'{"a": "\xff"}', b"[]", b"null"])
def test_an_answer_that_is_no_object_says_nothing(body: bytes) -> None:
    """An answer that is no object says nothing, also one that is nested without end."""
    assert json_object({"/x": body}, "/x") == {}


def test_a_window_beyond_any_count_is_none() -> None:
    """Tokenizers without a limit say 1e30."""
    assert [positive(one) for one in (1, 2**31 - 1)] == [1, 2**31 - 1]
    assert [positive(one) for one in (2**31, int(1e30), True, 0)] == [None] * 4


def _told(kind: str, data: bytes, size: int = 1 << 20) -> ExternalAnswer:
    """The answer after these bytes of a stream."""
    api, answer = api_of(kind), answer_to(sampling(max_tokens=9))
    reader, splitter = api.reader(answer.next_job()), EngineEventSplitter()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    for payload in [one for piece in pieces for one in splitter.feed(piece)] + splitter.flush():
        if not answer.is_over and (event := reader.read(payload)) is not None:
            answer.take(event)
    answer.stream_ended()
    return answer


def _events(kind: str) -> list[Any]:
    body = json.loads(api_of(kind).request(answer_to(sampling(max_tokens=9)).next_job()).body)
    return [*EVENTS[kind](Settings(kind=kind, answer=SCRIPT, cached=2), body, PROMPT)]


def _each(change: Callable[[str, Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _each(change, change(key, inner)) for key, inner in value.items()}
    return [_each(change, one) for one in value] if isinstance(value, list) else value


def _as_text(_: str, value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_float(_: str, value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _without_lists(_: str, value: Any) -> Any:
    return None if value == [] else value


def _without_counts(key: str, value: Any) -> Any:
    return None if key in {"prompt_tokens", "completion_tokens", "tokens_evaluated"} else value


def _without_ends(key: str, value: Any) -> Any:
    return "" if key == "finish_reason" and value is None else value


def _with_errors(value: Any) -> Any:
    return {**value, "error": {}} if isinstance(value, dict) else value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("blank", ["\r\n\r\n", "\n\r\n"])
@pytest.mark.parametrize(
    "change", [_as_text, _as_float, _without_lists, _without_counts, _without_ends]
)
def test_what_a_proxy_makes_of_an_event_costs_no_answer(
    kind: str, size: int, blank: str, change: Callable[[str, Any], Any]
) -> None:
    """Numbers as texts, null for an empty list, no end as an empty text; a byte order mark, an
    error in which nothing is, and a last event without its blank line; blank lines of other ends.
    """
    events = [_with_errors(_each(change, one)) for one in _events(kind)]
    lines = [one if isinstance(one, str) else json.dumps(one) for one in events]
    text = "".join(f"data: {line}{blank}" for line in lines)
    answer = _told(kind, b"\xef\xbb\xbf" + text.encode().rstrip(), size)
    assert (answer.num_outputs, answer.reason, answer.cached_tokens) == (len(SCRIPT), "stop", 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "data",
    [
        b'data: {"error": {"message": "It is hot."}}\n\n',
        b'data: {"error": "It is hot."}\n\n',
        b'data: {"object": "error", "message": "It is hot.", "code": 500}\n\n',
        b'data: {"detail": "It is hot."}\n\n',
        b'event: error\ndata: {"message": "It is hot."}\n\n',
        b'{"error": {"message": "It is hot."}}',
        b'{"object": "error", "message": "It is hot."}',
    ],
)
def test_the_words_of_a_failing_engine_are_found(kind: str, data: bytes) -> None:
    """A failing engine's words are found in an event of any form, or in another body."""
    with pytest.raises(EngineTrouble, match="It is hot"):
        _told(kind, data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_an_event_at_the_end_is_none(kind: str) -> None:
    """The answer is not whole, and nobody reads the half."""
    data = b"data: " + json.dumps(_events(kind)[0]).encode()
    answer = _told(kind, data[:-3])
    assert (answer.num_outputs, answer.is_over) == (0, False)
    splitter = EngineEventSplitter()
    splitter.feed(data[:-3])
    assert splitter.flush() == []
    assert not splitter.is_between


@pytest.mark.parametrize(
    "body",
    [
        b'data: null\n\ndata: {}\n\ndata: {"choices": [{"delta": {"content": "a"}}]}\n\n',
        b'data: {"choices": [{"delta": {"thinking": "a"}}]}\n\n',
        b'data: {"choices": [{"delta": {"reasoning_details": [{"text": "a"}]}}]}\n\n',
        b'data: {"choices": [{"text": "a"}]}\n\n',
        b'data: {"choices": [{"delta": {"content": [{"text": "a"}]}}], "error": {}}\n\n',
        b'data: {"choices": [{"delta": {"content": "a\xff\tb"}}]}',
        b'\xef\xbb\xbf\n {"choices": [{"message": {"content": "a"}}],\n\n"x": NaN}',
    ],
)
def test_a_text_engine_proves_itself_in_any_form_that_gateways_read(body: bytes) -> None:
    """A text engine proves itself in any form that gateways read; else it would never be ready,
    although each of its answers could be read.
    """
    for size in (1, 1 << 20):
        proof = Proof()
        for at in range(0, len(body), size):
            proof.take(body[at : at + size])
        proof.end(200, body)
        assert proof.has_tokens


@pytest.mark.parametrize(
    "body",
    [b"", b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\ndata: [DONE]\n\n', b"<html>"],
)
def test_a_text_engine_without_tokens_proves_nothing(body: bytes) -> None:
    """A text engine without tokens proves nothing, and may prove itself at a later try."""
    proof = Proof()
    proof.take(body)
    with pytest.raises(EngineTrouble, match="no tokens"):
        proof.end(200, body)
