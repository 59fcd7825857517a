"""`herma plan`: what a model takes on a card, from its config.json alone."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from config import SpeculationConfig, find_mistakes
from herma.cli import main
from herma.formats_table import ASKED
from herma.planned_model import PlannedCard, this_card
from tests.fakes.int4_files import FORMATS, SHAPE, drawn, stored
from tests.fakes.model_hub import model_hub
from tests.fakes.tiny_drafters import (
    DFLASH,
    EAGLE3,
    add_gated_head,
    dflash_shapes,
    drafted_ids,
    eagle3_shapes,
    random_drafter,
    write_drafter,
)
from tests.fakes.tiny_families import FAMILIES, write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.herma.doctor.machine import Machine
from workers.engine.drafting.demand import draft_demand
from workers.engine.drafting.description import read_drafter
from workers.engine.load.kept_modules import read_kept
from workers.engine.load.quantize import StoredFormat, format_of
from workers.engine.memory.forecast import MemoryChoice, forecast, kv_token_bytes, weights_bytes
from workers.engine.models.families import TYPE_FORMATS
from workers.engine.models.model_config import LACKING, read_model_config
from workers.engine.models.state_slots import MOST_TAKEN_BACK
from workers.engine.models.vocabulary import VocabularyForm
from workers.model_dir import dummy_dir

PLAIN = MemoryChoice(weights="bfloat16", fp8_kv=False, token_budget=4096, max_context=131_072)
GB = 10**9
HEAD_ROW = (
    "the checkpoint's MTP head, 1.63 GiB (on cards with 8-bit floats), 810.0 MiB (else), "
    "4 KiB a token, 14.2 MiB a sequence"
)
ASSUMED = PlannedCard(24 * GB, " (24GB assumed: no card was found here, --card names one)")


def _printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["plan", *arguments])
    printed = capsys.readouterr()
    if max(map(len, arguments), default=0) < 40:  # a long path stays whole, and widens its table
        assert all(len(line) <= 80 for line in printed.out.splitlines())
    return status, re.sub(r"\n {14}(?=\S)", " ", printed.out), printed.err


def test_the_table_names_all_parts(capsys: pytest.CaptureFixture[str]) -> None:
    """8.19 billion numbers in 16 bits, 36 layers x 8 heads x 128 x 2 a token; 8 bits fit."""
    status, out, _ = _printed(capsys, "dummy:qwen3-8b", "--card", "24GB")
    assert status == 0
    names = [line.split("  ")[0] for line in out.splitlines()[:10]]
    expected = ["model", "card", "weights", "head", "keys, values", "states", "snapshots"]
    assert names == [*expected, "host cache", "graphs", "largest step"]
    assert "tokens of prefixes for each GiB: 7,281 (bfloat16), 14,563 (fp8)" in out
    assert "15.26 GiB (bfloat16), 8.79 GiB (fp8), 5.70 GiB (int4)" in out
    assert "144 KiB (bfloat16), 72 KiB (fp8) a token" in out
    assert [line.split()[0] for line in out.split("\n\n")[1].splitlines()[1:]] == [
        name for name in ("latency", "balanced", "throughput") for _ in range(5)
    ]


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("143771, NVIDIA H200\n24564, other", PlannedCard(143_771 * 2**20, " (NVIDIA H200)")),
        # Memory that the card shares with the host has no size of its own.
        ("[N/A], NVIDIA GB10", ASSUMED),
        (None, ASSUMED),
    ],
)
def test_the_card_is_this_hosts_unless_named(
    listed: str | None, expected: PlannedCard, tmp_path: Path
) -> None:
    """The first one listed; else a size that is said to be assumed."""
    machine = Machine(tmp_path)
    if listed is not None:
        machine.answer(
            "nvidia-smi --query-gpu=memory.total,name --format=csv,noheader,nounits", listed
        )
    assert this_card(machine.host) == expected


def test_a_built_in_model_needs_no_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    """A built-in model needs no prefix, as for `herma up --model`; another word names all forms
    that there are.
    """
    assert _printed(capsys, "herma-tiny", "--card", "1GB")[1].startswith("model         Qwen3: 8 l")
    assert "built in: builtin:herma-tiny" in _printed(capsys, "herma-tinny")[2]


@pytest.mark.parametrize(
    ("arguments", "row"),
    [
        (("dummy:qwen3.6-27b",), "none; --speculation auto adds the checkpoint's MTP head"),
        (
            ("dummy:qwen3.6-27b", "--speculation", "auto"),
            HEAD_ROW,
        ),
        (
            ("dummy:qwen3.6-27b", "--speculation", "suffix"),
            "earlier text, on the host, 14.2 MiB a sequence",
        ),
        (("dummy:qwen3-8b", "--speculation", "auto"), "earlier text, on the host"),
        (
            ("herma-tiny", "--speculation", "auto"),
            "mtp, 2.0 MiB (on cards with 8-bit floats), 1.8 MiB (else), 512 B a token",
        ),
        (("dummy:qwen3-8b",), None),
    ],
)
def test_drafts_have_a_row(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], row: str | None
) -> None:
    """The plan of a checkpoint with an MTP head names the head."""
    _, out, _ = _printed(capsys, *arguments, "--card", "48GB")
    found = [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("drafts ")]
    assert found == ([] if row is None else [row])


def _with_its_drafter(kind: str, path: Path) -> tuple[Path, Path]:
    """A model, and the directory of its drafter."""
    if kind == "mtp":
        write_family(path, "qwen3_5")
        add_gated_head(path)
        return path, path
    model = write_tiny_model(path / "model", num_hidden_layers=5)
    tensors = random_drafter(dflash_shapes(DFLASH) if kind == "dflash" else eagle3_shapes(EAGLE3))
    config = DFLASH if kind == "dflash" else EAGLE3
    if kind == "eagle3":
        tensors |= drafted_ids(config)
    return model, write_drafter(path / "drafter", config, tensors)


@pytest.mark.parametrize("kind", ["mtp", "dflash", "eagle3"])
def test_drafters_take_what_a_start_takes(kind: str, tmp_path: Path) -> None:
    """A drafter's planned memory is that of a start, except norms, and EAGLE-3's table of
    tokens.
    """
    path, drafter = _with_its_drafter(kind, tmp_path)
    speculation = SpeculationConfig(str(drafter))
    runner = load_tiny(path, kv_tokens=1024, context_length=512, speculation=speculation)
    assert runner.drafter is not None
    config = read_model_config(path)
    shape = read_drafter(drafter, config)
    demand = draft_demand(shape, config, fp8=False)
    assert demand.token_bytes == runner.drafter.token_bytes / 2  # float32
    taken = runner.drafter.num_bytes / 2
    assert 0.93 * taken < demand.weights_bytes <= taken
    rings = 0 if not config.delta_rules else demand.ring_bytes
    assert rings == config.ring_bytes(2, MOST_TAKEN_BACK)


def test_drafts_leave_less_for_keys_and_values() -> None:
    """A head's weights, its keys and values, and the rows that may be taken back."""
    config = read_model_config(dummy_dir("dummy:qwen3.6-27b"))
    shape = read_drafter(dummy_dir("dummy:qwen3.6-27b"), config)
    choice = replace(PLAIN, weights="int4")
    plain, without = (
        forecast(config, 32 * GB, choice, 32, drafts=draft_demand(each, config, fp8=True))
        for each in (None, shape)
    )
    bare = forecast(config, 32 * GB, choice, 32)
    assert without.kv_tokens < plain.kv_tokens < bare.kv_tokens
    assert without.weights_bytes == bare.weights_bytes


def test_a_narrow_head_and_an_embedding_on_the_host_leave_more() -> None:
    """A narrow head and an embedding on the host leave a 27B in 4 bits on 24 GB more: nearly all
    bytes that the two matrices save go to keys and values. Drafts are then chosen by that head,
    without a copy of it.
    """
    config = read_model_config(dummy_dir("dummy:qwen3.6-27b"))
    matrix = 2 * config.vocab_size * config.hidden_size
    plain = replace(PLAIN, weights="int4")
    kept, fewer, fewest = (
        forecast(config, 24 * GB, replace(plain, vocabulary=VocabularyForm(head, on_host)), 32)
        for head, on_host in (("auto", False), ("fp8", False), ("int4", True))
    )
    assert kept.weights_bytes - fewer.weights_bytes == matrix // 2 - 4 * config.vocab_size
    assert 1.7 * matrix < kept.weights_bytes - fewest.weights_bytes < 1.75 * matrix
    assert 2 * kept.kv_tokens < fewest.kv_tokens
    shape = read_drafter(dummy_dir("dummy:qwen3.6-27b"), config)
    copied, shared = (
        draft_demand(shape, config, fp8=True, has_narrow_head=narrow) for narrow in (False, True)
    )
    assert copied.weights_bytes - shared.weights_bytes == matrix // 2 + 4 * config.vocab_size


def test_what_embedding_and_head_take_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What embedding and head take is a line, with what would be less; a tied model has one matrix,
    which a card needs for its head.
    """
    _, out, _ = _printed(capsys, "dummy:qwen3.6-27b", "--card", "24GB")
    assert "head          2.37 GiB of them; embedding 2.37 GiB of them; --head fp8" in out
    options = "--card", "24GB", "--head", "int4", "--embedding", "host"
    _, out, _ = _printed(capsys, "dummy:qwen3.6-27b", *options)
    assert "head          634.7 MiB of them; embedding in the host's memory\n" in out
    _, out, _ = _printed(capsys, "builtin:herma-tiny", "--card", "24GB")
    assert "head          the embedding itself, 2.0 MiB of them; --head fp8 --embed" in out
    status, out, error = _printed(capsys, "builtin:herma-tiny", "--embedding", "host")
    assert (status, out) == (2, "")
    assert "one matrix for embedding and head" in error


def test_what_does_not_fit_says_how_much_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """A form that does not fit says how much is missing, and the command fails if nothing fits."""
    status, out, _ = _printed(capsys, "dummy:qwen3-32b", "--card", "16GB", "--window", "4096")
    assert status == 1
    assert out.count("none    none") == 15
    assert "It does not fit: " in out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("dummy:qwen3-8b", "--card", "large"), "24GB"),
        (("dummy:qwen3-8b", "--card", "0"), "is no size"),
        (("dummy:qwen3-8b", "--speculation", "/none/at/all"), "/none/at/all"),
        (("dummy:qwen3-8b", "--speculation", str(dummy_dir("dummy:qwen3-4b"))), "no drafter that"),
        (("dummy:qwen3-8b", "--window", "99999"), "at most 40960"),
        (("dummy:none",), "dummy:none"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str
) -> None:
    """Sizes, windows and models."""
    status, _, error = _printed(capsys, *arguments)
    assert status == 2
    assert named in error
    assert error.count("\n") == 1


def test_weights_of_another_form_are_not_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights of another form are not planned, because they would not start. A shape may be
    planned, and a model that is not there yet.
    """
    write_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-Q4_K_M.gguf")
    status, _, error = _printed(capsys, str(tmp_path), "--card", "24GB")
    assert status == 2
    assert f"herma: {tmp_path} holds GGUF files and no safetensors: serve it" in error
    assert _printed(capsys, f"dummy:{tmp_path}", "--card", "24GB")[0] == 0
    (tmp_path / "model-Q4_K_M.gguf").unlink()
    assert _printed(capsys, str(tmp_path), "--card", "24GB")[0] == 0


def test_a_file_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People name the file that they have fetched, or the one in the directory. A start says the
    same.
    """
    for name, said in (
        ("qwen3-8b-q4_k_m.gguf", 'is a GGUF file: serve it with engine = "llama-cpp"'),
        ("config.json", "is a file: name the directory in which it lies"),
    ):
        path = tmp_path / name
        path.write_bytes(b"{}")
        status, out, error = _printed(capsys, str(path))
        assert (status, out) == (2, "")
        assert f"herma: {path} {said}" in error
        assert main(["up", "--model", str(path)]) == 2
        assert f"{path} {said}" in capsys.readouterr().err


def test_of_a_model_of_the_hub_only_the_configuration_is_fetched(tmp_path: Path) -> None:
    """The library reads its environment when it is imported, so it gets a process of its own."""
    write_tiny_model(tmp_path / "repos/owner/whole")
    with model_hub(tmp_path / "repos") as hub:
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, "-m", "herma", "plan", "owner/whole"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        fetched = set(hub.fetched)
    assert done.returncode == 0, done.stderr
    assert "2 layers of 48" in done.stdout
    assert fetched == {"config.json"}


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "phi4-mini", "qwen3_5"])
def test_weights_and_tokens_are_those_of_a_start(family: str, tmp_path: Path) -> None:
    """Planned weights and tokens are those of a start, except norms and biases, a few percent of so
    small a model.
    """
    assert family in FAMILIES
    runner = load_tiny(write_family(tmp_path, family), kv_tokens=1024, context_length=512)
    config = read_model_config(tmp_path)
    taken = runner.model.weights.num_bytes() / 2  # float32
    assert 0.95 * taken < weights_bytes(config, "bfloat16") <= taken
    tokens = (runner.cache.num_blocks + 1) * runner.cache.block_size
    assert runner.cache.num_bytes() / 2 == tokens * kv_token_bytes(config, PLAIN)
    # Eight sequences, a slot for padding, and prefixes.
    num_states = 0 if runner.facts.snapshots is None else 9 + runner.facts.snapshots
    assert runner.state_bytes == num_states * config.state_bytes(4)


def test_a_hybrid_keeps_states_beside_keys_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    """48 x (48 x 128 x 128 x 4 + 3 x 10,240 x 2) bytes a sequence, and keys in every fourth layer;
    an eighth of what weights leave is for sequences, as much for prefixes.
    """
    status, out, _ = _printed(capsys, "dummy:qwen3.6-27b", "--card", "141GB")
    assert status == 0
    assert "states        146.8 MiB a sequence, in 48 recurrent layers" in out
    assert "64 KiB (bfloat16), 32 KiB (fp8) a token" in out
    table = out.split("\n\n")[1].splitlines()
    assert table[0].split()[-2:] == ["seqs", "snapshots"]
    assert table[1].split()[-2:] == ["70", "70"]
    config = read_model_config(dummy_dir("dummy:qwen3.6-27b"))
    found = forecast(config, 141 * GB, PLAIN, 32)
    room = 141 * GB - found.weights_bytes
    assert 0.1 < found.max_seqs * found.state_bytes / room <= 0.125


def test_more_memory_holds_more_and_longer_windows_fewer() -> None:
    """Tokens grow with the card; a window that does not fit is cut to what does."""
    config = read_model_config(dummy_dir("dummy:qwen3-4b"))
    small, large = (forecast(config, size * GB, PLAIN, 32) for size in (16, 80))
    assert small.kv_tokens < large.kv_tokens
    assert large.window == config.max_position_embeddings
    assert large.whole_windows == large.kv_tokens // large.window
    tight = forecast(config, 11 * GB, PLAIN, 32)
    assert 0 < tight.window == tight.kv_tokens < config.max_position_embeddings
    assert tight.missing_bytes > 0


LISTS: dict[str, dict[str, Any]] = {
    "awq": {"modules_to_not_convert": ["visual", "linear_attn", "lm_head"]},
    "gptq": {"dynamic": {"-:.*linear_attn.*": {}, "+:.*mtp.*": {"bits": 8}}},
    "auto-round": {
        "block_name_to_quantize": "model.layers",
        "extra_config": {".*linear_attn\\.(in|out)_.*": {"bits": 16, "data_type": "float"}},
    },
    "packed symmetric": {"ignore": ["lm_head", "re:.*linear_attn.*", "re:.*visual.*"]},
}


@pytest.mark.parametrize("name", LISTS)
def test_modules_that_a_checkpoint_leaves_in_16_bits_are_counted(name: str, tmp_path: Path) -> None:
    """A hybrid whose recurrent layers are not quantised takes half as much again."""
    sizes = {**SHAPE, "linear_num_key_heads": 4, "linear_key_head_dim": 16}
    sizes |= {"linear_num_value_heads": 8, "linear_value_head_dim": 16, "num_key_value_heads": 2}
    path = write_family(tmp_path, "qwen3_5", **sizes)
    stated = FORMATS[name] | LISTS[name]
    tensors = load_file(path / "model.safetensors")
    for at, key in enumerate(sorted(tensors)):
        if key.endswith("_proj.weight") and "linear_attn" not in key:
            rows, depth = tensors.pop(key).shape
            matrix = drawn((rows, depth), name, at)
            tensors |= dict(stored(matrix, key.removesuffix(".weight"), name))
    save_file(tensors, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    changed = config | {"quantization_config": stated, "dtype": "bfloat16"}
    (path / "config.json").write_text(json.dumps(changed))
    runner = load_tiny(path, kv_tokens=1024, context_length=512, dtype="bfloat16")
    taken = runner.model.weights.num_bytes()
    described, kept = read_model_config(path), read_kept(stated)
    assert 0.93 * taken < weights_bytes(described, "int4", kept) < 1.05 * taken
    assert weights_bytes(described, "int4") < 0.8 * taken


@pytest.mark.parametrize(
    ("card", "words", "keys"),
    [
        ("80GB", "16 bits: a window of 40,960", {"context_length": 40_960}),
        ("24GB", "8 bits: a window of 40,960", {"quantization": "fp8", "context_length": 40_960}),
        ("4GB", "It does not fit", None),
    ],
)
def test_it_ends_in_a_verdict_and_a_table(
    card: str, words: str, keys: dict[str, Any] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The most bits that leave room for a whole window; the table is one of a file."""
    _, out, _ = _printed(capsys, "dummy:qwen3-8b", "--card", card)
    _, _, verdict, *table = out.strip().split("\n\n")
    assert words in verdict
    if keys is None:
        assert table == []
        return
    assert tomllib.loads(table[0])["workers"] == [{"name": "gpu0", "model": "...", **keys}]
    text = f'[[models]]\nname = "m"\n{table[0]}\n'
    assert find_mistakes(text.replace('"..."', '"org/model"'), "plan") == []


def _stored_in(form: str, path: Path) -> str:
    """A shape whose checkpoint is stored so."""
    raw = json.loads((dummy_dir("dummy:qwen3-8b") / "config.json").read_bytes())
    stated = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    if form == "awq":
        stated = FORMATS["awq"]
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(raw | {"quantization_config": stated}))
    return str(path)


@pytest.mark.parametrize(("form", "words"), [("fp8", "8 bits"), ("awq", "4 bits")])
def test_a_form_that_a_checkpoint_has_is_no_setting(
    form: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start refuses `quantization` for weights in 4 bits; alone and among several."""
    model = _stored_in(form, tmp_path / ("stored-" * 12))
    _, out, _ = _printed(capsys, model, "--card", "24GB")
    assert (
        tomllib.loads("[[workers]]" + out.split("\n[[workers]]", 1)[1])["workers"][0]["model"]
        == model
    )
    assert f"with weights in {words}" in out
    assert "quantization =" not in out
    _, out, _ = _printed(capsys, model, "dummy:qwen3-14b", "--card", "40GB")
    tables = tomllib.loads("[[workers]]" + out.split("\n[[workers]]", 1)[1])["workers"]
    assert ["quantization" in one for one in tables] == [False, True]
    assert tables[0]["model"] == model


def test_a_checkpoint_in_mxfp4_has_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint in MXFP4, whose form is no value of `quantization`, has a verdict."""
    status, out, _ = _printed(capsys, "dummy:gpt-oss-20b", "--card", "24GB")
    assert status == 0
    assert "It fits with weights in MXFP4: a window of 131,072 tokens." in out
    table = tomllib.loads("[[workers]]" + out.split("\n[[workers]]", 1)[1])["workers"]
    assert table == [{"name": "gpu0", "model": "...", "context_length": 131_072}]


def test_what_is_cut_for_several_cards_says_so_in_its_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A worker without the key would take one card. What a start does not cut is not planned."""
    _, out, _ = _printed(capsys, "dummy:qwen3-8b", "--card", "24GB", "--cards", "2")
    table = tomllib.loads("[[workers]]" + out.split("\n[[workers]]", 1)[1])["workers"]
    assert table[0]["tensor_parallel"] == 2
    status, out, error = _printed(capsys, "dummy:gpt-oss-20b", "--card", "24GB", "--cards", "4")
    assert (status, out) == (2, "")
    assert "leaves 720 columns of an expert to each rank" in error
    assert _printed(capsys, "dummy:gpt-oss-20b", "--card", "24GB", "--cards", "2")[0] == 0


def test_two_cards_hold_a_share_each(capsys: pytest.CaptureFixture[str]) -> None:
    """A head is cut, an embedding is not, and is for one card's memory alone."""
    asked = ["plan", "dummy:qwen3.6-27b", "--card", "32GB", "--cards", "2"]
    assert main(asked) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 such cards (tensor_parallel = 2)" in shown
    assert "head 1.18 GiB of them; embedding 2.37 GiB of them keys" in shown
    assert main([*asked, "--speculation", "auto"]) == 0
    shown = capsys.readouterr().out
    assert 'speculation = "auto"' in shown
    (row,) = [line for line in shown.splitlines() if line.startswith("drafts ")]
    # Half of the layer and of the head's copy, and all of what joins embedding and state.
    assert "MTP head, 884.4 MiB" in row
    assert main([*asked, "--embedding", "host"]) == 2
    assert "--cards has no --embedding" in capsys.readouterr().err


def test_formats_are_those_that_load_and_what_is_in_the_way_of_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every format once, with the families that are read in it; refusals are those of a start."""
    status, out, _ = _printed(capsys, "--formats")
    assert status == 0
    text = " ".join(out.split())
    for each in StoredFormat:
        assert text.count(f" {each.bits} {each}: ") == 1
    assert "e5m2: quantised weights of this kind (fp8, e5m2) are" in text
    assert "of this kind (fp8, a scale by block [64, 64]) are" in text
    assert f" {StoredFormat.DENSE}: all families (" in text
    assert all(name in text for name in TYPE_FORMATS)
    assert f"{StoredFormat.MXFP4}: gpt_oss " in text
    assert f"{StoredFormat.FP8_TENSORS}: all but gpt_oss " in text
    for name, stated in ASKED:
        assert isinstance(format_of(stated), str), name
        assert f" {name}: " in text
    assert "AWQ gemv: its quantization_config asks for AWQ's version gemv; gemm is" in text
    assert all(f"{name}: {lacking}" in text for name, lacking in LACKING.items())


def test_formats_and_a_model_are_two_questions(capsys: pytest.CaptureFixture[str]) -> None:
    """One of them must be asked."""
    for arguments, words in (((), "--formats"), (("herma-tiny", "--formats"), "leave MODEL out")):
        status, out, error = _printed(capsys, *arguments)
        assert (status, out) == (2, "")
        assert words in error


@pytest.mark.parametrize(
    ("model", "stated"),
    [
        ("dummy:gpt-oss-20b", {"quant_method": "fp8", "weight_block_size": [128, 128]}),
        ("dummy:qwen3-8b", {"quant_method": "mxfp4"}),
    ],
)
def test_a_form_that_a_family_is_not_read_in_is_refused(
    model: str, stated: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A form that a family is not read in is refused, as the table says."""
    raw = json.loads((dummy_dir(model) / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"quantization_config": stated}))
    status, _, error = _printed(capsys, str(tmp_path))
    assert status == 2
    assert f"is not read as {format_of(stated)}: take a checkpoint" in error


def test_a_shape_without_its_prefix_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """`qwen3-8b` is no directory, and what was meant is installed."""
    assert main(["plan", "qwen3-8b", "--card", "24GB"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("the shape of that name is dummy:qwen3-8b")


def test_a_terminal_shows_the_heads_of_tables_in_one_line() -> None:
    """Their styles have no width."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    argv = [sys.executable, "-m", "herma", "plan", "dummy:qwen3-8b", "--card", "24GB"]
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    with subprocess.Popen(argv, stdout=slave, env={**kept, "TERM": "xterm"}) as process:
        os.close(slave)
        shown = b""
        try:
            while part := os.read(master, 65_536):
                shown += part
        except OSError:  # the end of a terminal that nobody writes to any more
            os.close(master)
    assert process.returncode == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()
    head = "profile weights kv tokens window missing whole seqs"
    assert [*map(str.split, lines)].count(head.split()) == 1
