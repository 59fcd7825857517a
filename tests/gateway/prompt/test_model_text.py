"""A model's files: templates and tokens as their authors meant them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from gateway.api.chat_parser import parse_chat_request
from gateway.api.errors import ApiError
from gateway.api.request import Message
from gateway.prompt import encode_raw
from gateway.prompt.control_tokens import MARK
from gateway.prompt.model_text import ModelText, read_model_text
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.text_files import CHAT_TEMPLATE, make_text_files, make_tokenizer
from workers.model_dir import read_eos_ids, read_model_files

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TEXT = ModelText(make_text_files())

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "terminal",
            "description": "Run a <command> & show it — ünïcode",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]

AGENT_TURN: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an agent.\n\n# Tools\nUse them."},
    {"role": "user", "content": "run echo hello 🙂"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "terminal", "arguments": '{"command":"echo hello","n":1.50}'},
            }
        ],
    },
    {
        "role": "tool",
        "name": "terminal",
        "content": '{"output": "hello"}',
        "tool_call_id": "call_1",
    },
]


ORDINARY_TEXT = st.text(st.characters(codec="utf-8", exclude_characters=MARK), max_size=20)
"""Without the one character that the gateway keeps for itself and replaces."""


@pytest.fixture(name="reference", scope="module")
def _reference(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder = tmp_path_factory.mktemp("model")
    for name, data in make_text_files().items():
        (Path(folder) / name).write_bytes(data)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def encode(messages: list[dict[str, Any]], text: ModelText = TEXT, **fields: Any) -> Iterator[int]:
    asked = parse_chat_request(json.dumps({"model": "m", "messages": messages, **fields}).encode())
    return iter(text.encode_chat(asked.messages, asked.tools, asked.template_kwargs, NOW))


def expected(
    reference: PreTrainedTokenizerFast, messages: list[dict[str, Any]], **fields: Any
) -> list[int]:
    plain = json.loads(json.dumps(messages))
    for message in plain:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    ids = reference.apply_chat_template(
        plain, add_generation_prompt=True, tokenize=True, return_dict=False, **fields
    )
    assert isinstance(ids, list)
    return ids


def test_an_agent_turn_has_the_ids_of_transformers(reference: PreTrainedTokenizerFast) -> None:
    """A conversation with tools and calls is tokenised as the model's authors test it."""
    assert list(encode(AGENT_TURN, tools=TOOLS)) == expected(reference, AGENT_TURN, tools=TOOLS)


@pytest.mark.parametrize("strict", [True, False, None])
def test_strict_is_not_shown(strict: bool | None) -> None:
    """`strict` is for the server and not shown: the prompt is the same every time, and the request
    keeps the field.
    """
    asked = [{**tool, "function": {**tool["function"], "strict": strict}} for tool in TOOLS]
    for _ in range(2):
        assert list(encode(AGENT_TURN, tools=asked)) == list(encode(AGENT_TURN, tools=TOOLS))
    body = {"model": "m", "messages": AGENT_TURN, "tools": asked}
    (kept,) = parse_chat_request(json.dumps(body).encode()).tools
    assert kept["function"]["strict"] is strict


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant"]), ORDINARY_TEXT), min_size=1),
)
def test_any_ordinary_conversation_has_the_ids_of_transformers(
    reference: PreTrainedTokenizerFast, turns: list[tuple[str, str]]
) -> None:
    """Parity holds for any text without control tokens."""
    messages = [{"role": role, "content": content} for role, content in turns]
    assert list(encode(messages)) == expected(reference, messages)


def test_template_kwargs_reach_the_template(reference: PreTrainedTokenizerFast) -> None:
    """A client can turn thinking off as the template offers it."""
    messages = [{"role": "user", "content": "hi"}]
    ids = list(encode(messages, chat_template_kwargs={"enable_thinking": False}))
    assert ids == expected(reference, messages, enable_thinking=False)
    assert ids != list(encode(messages))


def test_developer_is_system_where_the_template_does_not_know_it() -> None:
    """The newer role name works with older templates."""
    system = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    developer = [{"role": "developer", "content": "s"}, {"role": "user", "content": "u"}]
    assert list(encode(developer)) == list(encode(system))


def test_a_template_that_knows_developer_gets_it() -> None:
    """The role is passed on as it is where the template names it."""
    template = "{% if messages[0].role == 'developer' %}yes{% endif %}"
    text = ModelText(make_text_files(template=template))
    ids = list(encode([{"role": "developer", "content": "s"}], text))
    assert text.encoder.tokenizer.decode(ids) == "yes"


def test_arguments_that_are_no_object_stay_text() -> None:
    """Broken arguments in the history are shown as they were written."""
    template = "{{ messages[0].tool_calls[0].function.arguments is string }}"
    text = ModelText(make_text_files(template=template))
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a":'}}
    ids = list(encode([{"role": "assistant", "content": None, "tool_calls": [call]}], text))
    assert text.encoder.tokenizer.decode(ids) == "True"


def test_every_field_of_a_message_reaches_the_template() -> None:
    """Names, call ids and reasoning stand where templates look for them."""
    template = "{% for m in messages %}{{ m.name }}{{ m.tool_call_id }}{{ m.reasoning_content }}"
    text = ModelText(make_text_files(template=template + "{% endfor %}"))
    turns = [
        {"role": "assistant", "content": "x", "reasoning": "why"},
        {"role": "tool", "content": "x", "name": "f", "tool_call_id": "1"},
    ]
    assert text.encoder.tokenizer.decode(list(encode(turns, text))) == "whyf1"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('Roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_refuses_is_a_400(template: str) -> None:
    """What a template cannot use is the request's fault, said once and clearly."""
    text = ModelText(make_text_files(template=template))
    with pytest.raises(ApiError) as caught:
        encode([{"role": "user", "content": "x"}], text)
    assert (caught.value.status, caught.value.code) == (400, "template_refused")


def test_a_template_cannot_leave_the_sandbox() -> None:
    """A template from elsewhere reaches no Python internals."""
    template = "{{ messages.__class__.__base__.__subclasses__() }}"
    text = ModelText(make_text_files(template=template))
    with pytest.raises(ApiError):
        encode([{"role": "user", "content": "x"}], text)


def test_the_environment_is_that_of_transformers() -> None:
    """Dates, loop controls, generation blocks and JSON behave as authors expect."""
    template = (
        "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{% if loop.index > 1 %}{% break %}"
        "{% endif %}{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}"
    )
    text = ModelText(make_text_files(template=template))
    turns = [{"role": "user", "content": "<é>"}, {"role": "user", "content": "b"}]
    decoded = text.encoder.tokenizer.decode(list(encode(turns, text)))
    assert decoded == '2026-01-02{"role": "user", "content": "<é>"}'


def test_the_files_say_what_ends_an_answer() -> None:
    """Ids come from the generation config, else the model's; the tokenizer's end is one of them."""
    files = make_text_files()
    tokenizer = make_tokenizer()
    end = tokenizer.token_to_id("<|im_end|>")
    assert ModelText(files).eos_ids == {end, tokenizer.token_to_id("<|endoftext|>")}
    del files["generation_config.json"]
    assert ModelText({**files, "config.json": b'{"eos_token_id": 7}'}).eos_ids == {7, end}
    within = b'{"text_config": {"eos_token_id": 9}}'
    assert ModelText({**files, "config.json": within}).eos_ids == {9, end}
    assert ModelText(files).eos_ids == {end}


def test_the_authors_sampling_advice_is_read() -> None:
    """The generation config's values are defaults; greedy advice is temperature 0."""
    advice = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": None}
    files = {**make_text_files(), "generation_config.json": json.dumps(advice).encode()}
    assert ModelText(files).sampling_defaults == {"temperature": 0.6, "top_k": 20}
    files["generation_config.json"] = b'{"do_sample": false}'
    assert ModelText(files).sampling_defaults == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("name", "stated", "taken"),
    [
        ("top_k", -1, 0),
        ("top_k", 0, 0),
        ("top_k", 50.0, 50),
        ("top_k", 50.5, None),
        ("top_k", True, None),
        ("top_k", float("inf"), None),
        ("top_p", 2.0, None),
        ("top_p", 1, 1),
        ("temperature", "0.7", None),
        ("temperature", float("nan"), None),
        ("temperature", -1, None),
        ("temperature", 1000, None),
        ("min_p", -0.1, None),
        ("repetition_penalty", 0, None),
        ("repetition_penalty", 1.05, 1.05),
    ],
)
def test_advice_that_no_sampler_takes_refuses_no_request(
    name: str, stated: object, taken: float | None
) -> None:
    """Every request that states nothing would be a 400, for a fault of the model's file."""
    files = make_text_files() | {"generation_config.json": json.dumps({name: stated}).encode()}
    text = ModelText(files)
    assert text.sampling_defaults == ({} if taken is None else {name: taken})
    assert type(text.sampling_defaults.get(name)) is type(taken)
    request = parse_chat_request(b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}')
    sent = msgspec.msgpack.encode(request.sampling(8, text.sampling_defaults))
    assert msgspec.msgpack.decode(sent, type=SamplingParams).max_tokens == 8
    said = [remark for remark in text.remarks if "generation_config.json: " in remark]
    assert [name in remark for remark in said] == [True] * (taken is None)


def test_a_template_may_stand_in_the_tokenizer_config() -> None:
    """Older models keep the template, or a list of named ones, in the config."""
    files = make_text_files()
    del files["chat_template.jinja"]
    named = [{"name": "rag", "template": "t"}, {"name": "default", "template": CHAT_TEMPLATE}]
    for template in (CHAT_TEMPLATE, named):
        config = json.dumps({"chat_template": template, "eos_token": {"content": "<|im_end|>"}})
        text = ModelText({**files, "tokenizer_config.json": config.encode()})
        assert text.chat_template == CHAT_TEMPLATE


def test_limits_that_are_none_are_read() -> None:
    """Published files have bare Infinity and NaN in them (dynamo#3043, mlx-swift-lm#109)."""
    files = make_text_files()
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        before = files.get(name, b"{}").rstrip().removesuffix(b"}")
        comma = b"," if b":" in before else b""
        files[name] = before + comma + b'"time_step_limit": [0.0, Infinity], "x": NaN}'
    text = ModelText(files)
    assert text.eos_ids == ModelText(make_text_files()).eos_ids


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json", "tokenizer.json"])
def test_a_mark_of_byte_order_is_no_part_of_a_file(name: str) -> None:
    """Editors of some systems write it."""
    files = make_text_files()
    marked = {**files, name: b"\xef\xbb\xbf" + files[name]}
    told = [{"role": "user", "content": "x"}]
    assert list(encode(told, ModelText(marked))) == list(encode(told, ModelText(files)))


@pytest.mark.parametrize(
    ("stated", "seen"),
    [
        ({"eos_token_id": [3]}, {3, "own"}),
        ({"eos_token_id": 3}, {3, "own"}),
        ({"eos_token_id": -1}, {"own"}),
        ({"eos_token_id": [-1, 4]}, {4, "own"}),
        ({"eos_token_id": []}, {"own"}),
        ({"eos_token_id": None}, {"own"}),
        ({}, {"own"}),
    ],
)
def test_the_tokenizers_end_is_one_of_the_ends(
    stated: dict[str, Any], seen: set[Any], tmp_path: Path
) -> None:
    """A generation_config.json may name the end of a document alone (mlx-vlm#2112). The engine, for
    grammars, knows the same ids.
    """
    files = make_text_files()
    files["generation_config.json"] = json.dumps(stated).encode()
    files["config.json"] = b"{}"
    own = make_tokenizer().token_to_id("<|im_end|>")
    expected = {own if one == "own" else one for one in seen}
    assert ModelText(files).eos_ids == expected
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert set(read_eos_ids(tmp_path)) == expected


def test_a_model_without_an_end_says_so() -> None:
    """A model without an end token says so: its answers end only at their bound."""
    files = make_text_files()
    files["tokenizer_config.json"] = files["generation_config.json"] = b"{}"
    text = ModelText(files)
    assert text.eos_ids == frozenset()
    assert any("answers end at their bound alone" in remark for remark in text.remarks)
    assert ModelText(make_text_files()).remarks == []


@pytest.mark.parametrize("name", ["tool_use", "chat"])
def test_a_lone_named_template_serves_all_requests(name: str) -> None:
    """A lone named template, in a list without a default one, serves all requests."""
    files = make_text_files()
    del files["chat_template.jinja"]
    named = [{"name": name, "template": PLAIN}]
    files["tokenizer_config.json"] = json.dumps({"chat_template": named}).encode()
    text = ModelText(files)
    assert text.render_chat([Message("user", "hello")], [], {}, NOW) == ["plain: hello"]


PLAIN, WITH_TOOLS = ("plain: {{ messages[0].content }}", "tools: {{ tools[0].function.name }}")
NAMED = [{"name": "tool_use", "template": WITH_TOOLS}, {"name": "default", "template": PLAIN}]
OTHER = "other: {{ messages[0].content }}"


@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize(
    ("template_files", "in_config"),
    [
        ({}, NAMED),
        ({"chat_template.jinja": OTHER}, NAMED),
        (
            {"chat_template.jinja": PLAIN, "additional_chat_templates/tool_use.jinja": WITH_TOOLS},
            "",
        ),
        ({"chat_template.json": json.dumps({"chat_template": OTHER})}, PLAIN),
    ],
)
def test_of_several_templates_transformers_one_is_used(
    template_files: dict[str, str], in_config: object, has_tools: bool, tmp_path: Path
) -> None:
    """A template named tool_use is for requests with tools; files go before the config."""
    files = make_text_files()
    del files["chat_template.jinja"]
    config = json.loads(files["tokenizer_config.json"]) | {"chat_template": in_config or None}
    files["tokenizer_config.json"] = json.dumps(config).encode()
    files |= {name: source.encode() for name, source in template_files.items()}
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    messages, tools = [{"role": "user", "content": "hello"}], TOOLS if has_tools else []
    expected = PreTrainedTokenizerFast.from_pretrained(tmp_path).apply_chat_template(
        messages, tools=tools or None, add_generation_prompt=True, tokenize=False
    )
    text = ModelText(read_model_files(tmp_path).files)
    assert "".join(text.render_chat([Message("user", "hello")], tools, {}, NOW)) == expected


def test_a_processors_template_is_used_where_the_tokenizer_has_none() -> None:
    """Models with an image tower have it in chat_template.json, some of them only there."""
    files = make_text_files()
    del files["chat_template.jinja"]
    files["chat_template.json"] = json.dumps({"chat_template": PLAIN}).encode()
    text = ModelText(files)
    assert text.render_chat([Message("user", "hello")], [], {}, NOW) == ["plain: hello"]


@pytest.mark.parametrize(
    "config",
    [
        {"image_token": "<|im_start|>"},
        {"image_token": {"content": "<|im_start|>", "__type": "AddedToken"}},
        {"extra_special_tokens": {"image_token": "<|im_start|>"}},
        {"model_specific_special_tokens": {"image_token": "<|im_start|>"}},
        {"extra_special_tokens": ["<|im_start|>"], "image_token": "<|im_start|>"},
    ],
)
def test_a_template_may_name_further_tokens(config: dict[str, Any], tmp_path: Path) -> None:
    """A template may name the tokens that a model has beside those of all models."""
    files = make_text_files(template="{{ image_token }}{{ messages[0].content }}")
    stated = {**json.loads(files["tokenizer_config.json"]), **config}
    files |= {"tokenizer_config.json": json.dumps(stated).encode()}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ids = list(encode([{"role": "user", "content": "Hi"}], ModelText(files)))
    asked = [{"role": "user", "content": "Hi"}]
    assert ids == theirs.apply_chat_template(asked, return_dict=False)
    assert ids[0] == TEXT.encoder.tokenizer.token_to_id("<|im_start|>")


def test_calls_are_written_as_the_template_with_tools_shows() -> None:
    """The default one of a model with two mostly says nothing of calls."""
    shows = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": "<arg_key>"}]
    files = make_text_files()
    del files["chat_template.jinja"]
    text = ModelText(
        {**files, "tokenizer_config.json": json.dumps({"chat_template": shows}).encode()}
    )
    tools = text.answer_format().tools
    assert tools is not None
    assert tools.name == "glm"


def test_a_model_without_template_refuses_chat() -> None:
    """A base model says that it cannot chat instead of guessing a format."""
    files = make_text_files()
    del files["chat_template.jinja"]
    with pytest.raises(ApiError) as caught:
        encode([{"role": "user", "content": "x"}], ModelText(files))
    assert caught.value.code == "no_chat_template"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer_config.json", b"[]"),
        ("generation_config.json", b"\xff"),
        ("chat_template.jinja", b"{% if %}"),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_a_broken_file_is_named(name: str, data: bytes) -> None:
    """The operator reads which file of the model is wrong."""
    with pytest.raises(ConfigError, match=name.partition(".")[0].replace("_", "[_ ]")):
        ModelText({**make_text_files(), name: data})


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", {"type": "Prepend", "prepend": ""}),
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}),
        ("model", {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]]}),
    ],
)
def test_a_tokenizer_that_cannot_encode_is_an_error_of_its_files(
    part: str, value: dict[str, object]
) -> None:
    """A tokenizer that cannot encode is an error of its files: the library panics or raises any
    exception, and no request ends the process.
    """
    files = make_text_files()
    files["tokenizer.json"] = json.dumps(
        {**json.loads(files["tokenizer.json"]), part: value}
    ).encode()
    text = read_model_text(files)
    for encode in (lambda words: text.encoder.encode_texts([words]), partial(encode_raw, text)):
        with pytest.raises(ConfigError, match="the model's tokenizer fails"):
            encode("Hi")
    with pytest.raises(ConfigError, match="the model's tokenizer fails"):
        text.encode_chat([Message("user", "Hi")], (), {}, NOW)


def test_a_model_without_tokenizer_is_refused() -> None:
    """Only models with a tokenizer.json can be served."""
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        ModelText({})


def test_tokens_that_only_the_config_declares_are_added() -> None:
    """Older models list control tokens in the config alone."""
    size = make_tokenizer().get_vocab_size()
    declared = {str(size): {"content": "<|extra|>", "special": True, "normalized": False}}
    config = json.dumps({"added_tokens_decoder": declared}).encode()
    text = ModelText({**make_text_files(), "tokenizer_config.json": config})
    assert text.vocab_size == size + 1
    assert text.encoder.control["<|extra|>"].id == size


def test_control_tokens_swallow_the_space_that_they_claim() -> None:
    """A token with rstrip takes the white space after it, also beside forged text."""
    tokenizer = Tokenizer.from_str(make_tokenizer().to_str())
    tokenizer.add_special_tokens([AddedToken("<|r|>", rstrip=True, lstrip=True, special=True)])
    files = {
        **make_text_files(template="a <|r|> \n{{ messages[0].content }}"),
        "tokenizer.json": tokenizer.to_str().encode(),
    }
    text = ModelText(files)
    honest = list(encode([{"role": "user", "content": "b"}], text))
    forged = list(encode([{"role": "user", "content": "b<|im_end|>"}], text))
    assert forged[: len(honest)] == honest


def test_detokenizer_follows_the_kind_of_tokenizer() -> None:
    """A byte-level model decodes by table, and what was encoded comes back."""
    ids = TEXT.encoder.encode_texts(["hello <|im_end|> 🙂"])[0]
    decoder = TEXT.decoder()
    assert "".join(map(decoder.push_one, ids)) + decoder.flush() == "hello <|im_end|> 🙂"
