"""A start of the engine on a pretended device that only records launches, beside the dry run of
that start.

Run as a program, without the interpreter: the test's own process has Triton interpret. Tensors lie
on the CPU and the code takes that for a card; kernels do not run, so tokens are made 0.
"""

import json
import os
import sys
from array import array
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch.overrides import TorchFunctionMode
from triton import knobs
from triton.runtime import driver

from kernels import choose
from tests.fakes.triton_card import TritonCard

# Before anything else of ours is imported: modules take these functions by name.
choose.uses_triton = lambda _: True
choose.is_card = lambda _: True
choose.capability = lambda _: (9, 0)

from config import WorkerConfig  # noqa: E402
from kernels.attention import ExtendSegment, extend_attention, library  # noqa: E402
from kernels.cuda import hopper  # noqa: E402
from kernels.linear import (  # noqa: E402
    gemv,
    int4,
    int4_ampere,
    int4_tiles,
    int4_verdict,
    linear_add,
    norm_linear,
    norm_swiglu,
    skinny,
    wide,
)
from kernels.linear.int4_check import PRODUCTS  # noqa: E402
from kernels.recorder import RecordedKernel, pretend_device, record_launches  # noqa: E402
from kernels.sample import kernel as drawing  # noqa: E402
from protocol.sampling import SamplingParams  # noqa: E402
from tests.fakes.tiny_models import write_tiny_model  # noqa: E402
from tests.fakes.uninterpreted import run_checks  # noqa: E402
from tests.kernels.attention_cases import Shape  # noqa: E402
from tests.kernels.extend_attention_checks import attend_alone  # noqa: E402
from tests.workers.engine.load.test_quantize import BY_BLOCK, BY_ROW, quantised_twins  # noqa: E402
from workers.engine.compile.compile_ahead import CompileAhead, compiler_command  # noqa: E402
from workers.engine.compile.dry_run import dry_run  # noqa: E402
from workers.engine.compile.kernel_cache import is_complete, watch_kernel_cache  # noqa: E402
from workers.engine.graphs.capture import run_again  # noqa: E402
from workers.engine.graphs.device_steps import DeviceSteps  # noqa: E402
from workers.engine.models.dummy import draw_weights  # noqa: E402
from workers.engine.models.kv_cache import KvCache  # noqa: E402
from workers.engine.models.model_config import read_model_config  # noqa: E402
from workers.engine.models.network import Network  # noqa: E402
from workers.engine.models.weight_reader import load_weights  # noqa: E402
from workers.engine.models.weights import (  # noqa: E402
    LayerWeights,
    blocked,
    quartered,
)
from workers.engine.peak_probe import run_largest_steps  # noqa: E402
from workers.engine.runner import ModelRunner  # noqa: E402
from workers.engine.settings import (  # noqa: E402
    compute_dtype,
    kv_dtype,
    layer_change,
    probe_facts,
    vocabulary_form,
)
from workers.engine.warm_up import warm_up, warm_up_plans  # noqa: E402
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan  # noqa: E402

H200 = 90
CPU = torch.device("cpu")
META = torch.device("meta")
PAIRS = ((1.0, 0.0, None), (1.0, 0.5, 2), (0.5, 0.0, 2), (0.5, 0.5, None))
"""Each two values of `top_p`, penalty and logprobs meet once."""
VALUES = ((1.0, 0.0, None), (0.5, 0.5, 2))
"""Each value once: for models that sample by the same kernels as one of `SAMPLED`."""
SAMPLED = ("plain", "odd", "exact")
"""The models with a vocabulary or a dtype of their own."""
OFTEN = ("plain", "odd", "eight")
"""The models of every run: of two vocabularies, with weights in 16 and 8 bits."""
DUMMY = Path(__file__).parents[3] / "config" / "dummy"
LARGE = DUMMY / "qwen3-8b"


def _worker(model_dir: Path, **changes: Any) -> WorkerConfig:
    settings = {"max_seqs": 5, "token_budget": 300, "device": "cuda", "dtype": "bfloat16"} | changes
    return WorkerConfig("check", str(model_dir), "check", (), **settings)


def _start(config: WorkerConfig) -> ModelRunner:
    """As `load_runner`, but for the card, and on to the first request."""
    model_dir = Path(config.model)
    shape = read_model_config(model_dir)
    dtype = compute_dtype(config, shape, torch.device("cuda"))
    change, form = layer_change(config, shape, dtype, CPU), vocabulary_form(config, shape)
    if any(model_dir.glob("*.safetensors")):
        weights = load_weights(
            model_dir, shape, CPU, dtype, lambda *_: None, change=change, vocabulary=form
        )
    else:
        weights = draw_weights(shape, CPU, dtype, change=change, vocabulary=form)
    model = Network(shape, weights, invariant=config.invariant)
    facts = probe_facts(config, model)
    for num_blocks, run in ((1, run_largest_steps), (facts.kv_tokens // facts.block_size, warm_up)):
        cache = KvCache(shape, num_blocks, facts.block_size, CPU, kv_dtype(config, dtype))
        steps = DeviceSteps(model, cache, facts, run_again)
        runner = ModelRunner(model, cache, facts, model_dir, steps)
        run(runner)
    runner.prepare(pending_only=False)  # as an engine does as soon as it is idle
    return runner


def _serve(runner: ModelRunner) -> None:
    """Requests of all kinds, alone and a few at once, with and without graphs."""
    pairs = PAIRS if runner.model_dir.name in SAMPLED else VALUES
    for seq, (top_p, penalty, logprobs) in enumerate(pairs):
        sampling = SamplingParams(9, top_p=top_p, presence_penalty=penalty, logprobs=logprobs)
        for plan in warm_up_plans(runner.facts, sampling, prompts=(512, 3)):
            runner.run(plan)
        for count in (2, 5):
            _serve_together(runner, sampling, count)
        runner.prepare(pending_only=seq % 2 == 0)


def _serve_together(runner: ModelRunner, sampling: SamplingParams, count: int) -> None:
    seqs, blocks = range(count), (0, 1)
    starts = [SequenceStart(seq, array("I", [1] * 7), 7, sampling, seed=0) for seq in seqs]
    for start, length in ((0, 3), (3, 4), (7, 1)):
        chunks = tuple([Chunk(seq, start, length, blocks, samples=start > 0) for seq in seqs])
        runner.run(StepPlan(1, tuple(starts), chunks, ()))
        starts = []
    runner.run(StepPlan(1, (), (), tuple(seqs)))


def _zero_tokens() -> None:
    picked = drawing.pick
    drawing.pick = lambda *arguments: picked(*arguments).zero_()


def _launched(config: WorkerConfig) -> tuple[dict[str, RecordedKernel], dict[str, RecordedKernel]]:
    """In the start, and by the requests behind it."""
    driver.set_active(TritonCard())
    with patch.object(torch, "_scaled_mm", _no_scaled), _NoProducts():
        with record_launches() as recorded:
            runner = _start(config)
        with record_launches() as served:
            _serve(runner)
    return recorded, served


class _NoProducts(TorchFunctionMode):
    """Replaces the library's products by their shapes, because a CPU is slow at products in few
    bits.
    """

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear:
            x, weight = args[:2]
            return x.new_zeros(*x.shape[:-1], weight.shape[0])
        return args[0] if func is torch.Tensor.addmm_ else func(*args, **(kwargs or {}))


def _no_scaled(
    values: torch.Tensor, weight: torch.Tensor, *, out_dtype: torch.dtype, **_: Any
) -> torch.Tensor:
    return torch.zeros(values.shape[0], weight.shape[1], dtype=out_dtype)


def _models(room: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """All kinds, in sizes that leave addresses which 16 does not divide; and their settings."""
    wide = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    yield write_tiny_model(room / "plain", num_hidden_layers=3), {}
    biased = write_tiny_model(room / "biased", tie_word_embeddings=True, attention_bias=True)
    yield biased, {"block_size": 16}
    odd = write_tiny_model(room / "odd", vocab_size=4099, head_dim=24)
    yield odd, {"kv_dtype": "fp8", "max_seqs": 70}
    yield write_tiny_model(room / "exact"), {"dtype": "float32", "context_length": 96}
    yield write_tiny_model(room / "eight", **wide), {"quantization": "fp8"}
    yield write_tiny_model(room / "invariant", **wide), {"invariant": True}
    yield _write_windows(room / "windows"), {}
    yield write_tiny_model(room / "prefill", **wide), {"prefill": "fp8"}
    yield quantised_twins(room / "rows", BY_ROW)[0], {}
    yield quantised_twins(room / "blocks", BY_BLOCK)[0], {}


def _write_windows(model_dir: Path) -> Path:
    """A configuration alone: the weights are drawn."""
    config = json.loads((DUMMY / "gemma-3-12b" / "config.json").read_text())
    sizes = {"hidden_size": 48, "intermediate_size": 96, "head_dim": 32, "vocab_size": 151}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "query_pre_attn_scalar": 24}
    layers = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
    config["text_config"] |= {**sizes, **heads, **layers, "sliding_window": 20}
    model_dir.mkdir()
    (model_dir / "config.json").write_text(json.dumps(config))
    return model_dir


def check_dry_run() -> None:
    """All that a start launches was launched in its dry run, for some kinds of models."""
    _check_dry_runs(OFTEN)


def check_dry_run_of_others() -> None:
    """All that a start launches was launched in its dry run, for all other kinds of models."""
    _check_dry_runs(("biased", "exact", "invariant", "windows", "prefill", "rows", "blocks"))


def _check_dry_runs(names: tuple[str, ...]) -> None:
    room = Path(os.environ["TRITON_CACHE_DIR"])
    for model_dir, changes in [model for model in _models(room) if model[0].name in names]:
        config = _worker(model_dir, **changes)
        expected, served = _launched(config)
        pretend_device(H200)
        first, *later = dry_run(config, model_dir)
        known = {kernel.id for kernel in first}
        missing = [kernel for kernel in expected.values() if kernel.id not in known]
        assert not missing, (config, missing)
        assert 15 < len(expected) <= len(first) <= len(expected) + 3, (config, len(first))
        others = {kernel.id for kernels in later for kernel in kernels}
        assert not known & others
        missing = [kernel for kernel in served.values() if kernel.id not in known | others]
        assert not missing, (config, missing)


def check_products_of_all_rows() -> None:
    """The dry run has the products of a large model, whose rows no graph of a small batch holds."""
    _check_products(invariant=False)


def check_invariant_products() -> None:
    """The dry run has the products of an invariant worker."""
    _check_products(invariant=True)


def _check_products(*, invariant: bool) -> None:
    hopper.has_compiler = lambda: True
    pretend_device(H200)
    lists = list(dry_run(_worker(LARGE, token_budget=2048, invariant=invariant), LARGE))
    known = {kernel.id for kernels in lists for kernel in kernels}
    for num_rows in (*range(1, 272), 512, 1024):
        with record_launches() as recorded:
            _multiply(num_rows, invariant=invariant)
        missing = [kernel for kernel in recorded.values() if kernel.id not in known]
        assert not missing, (num_rows, missing)
        num_wide = sum(kernel.module == wide.__name__ for kernel in recorded.values())
        # Else nothing was checked: `tuned` leaves some of 240 rows to the library, invariant none.
        assert num_rows != 240 or num_wide >= (3 if invariant else 1)


def check_products_by_block() -> None:
    """The dry run has the products by weights with scales by block, whose tiles of many rows have
    more sizes than graphs have.
    """
    hopper.has_compiler = lambda: True
    pretend_device(H200)
    room = Path(os.environ["TRITON_CACHE_DIR"]) / "large_blocks"
    room.mkdir()
    config = json.loads((LARGE / "config.json").read_text()) | {"quantization_config": BY_BLOCK}
    (room / "config.json").write_text(json.dumps(config))
    lists = list(dry_run(_worker(room, token_budget=8192), room))
    known = {kernel.id for kernels in lists for kernel in kernels}
    for num_rows in (*range(1, 272), *range(272, 2049, 37), 4096, 5000, 8192):
        with record_launches() as recorded:
            _multiply(num_rows, invariant=False, change=blocked)
        missing = [kernel for kernel in recorded.values() if kernel.id not in known]
        assert not missing, (num_rows, missing)
        modules = {kernel.module for kernel in recorded.values()}
        assert (wide.__name__ in modules) == (num_rows > 1)


def check_products_in_4_bits() -> None:
    """The dry run has the products in 4 bits by the kernel in CUDA C++ with its check, which comes
    first, and the widened ones of many rows.
    """
    _check_products_in_4_bits(H200, int4_tiles.__name__, len(PRODUCTS))


def check_products_in_4_bits_elsewhere() -> None:
    """The dry run has the products in 4 bits by the kernel of other cards."""
    for module in (choose, hopper, int4_ampere, int4_verdict):
        module.capability = lambda _: (8, 6)
    num_tiles = len(int4_ampere.configs_on(99 * 1024))
    _check_products_in_4_bits(86, int4_ampere.__name__, num_tiles)


def _check_products_in_4_bits(arch: int, module: str, least_checked: int) -> None:
    hopper.has_compiler = lambda: True
    pretend_device(arch)
    worker = _worker(LARGE, token_budget=2048, quantization="int4")
    first, *later = dry_run(worker, LARGE)
    checked = [kernel.module == module for kernel in first[:least_checked]]
    assert all(checked), first[:least_checked]
    known = {kernel.id for kernels in (first, *later) for kernel in kernels}
    for num_rows in (1, 2, 5, 9, 16, 17, 33, 64, 65, 200, 256, 300, 385, 512, 513):
        with record_launches() as recorded:
            _multiply(num_rows, invariant=False, change=quartered)
        modules = {kernel.module for kernel in recorded.values()}
        assert (module in modules) == (num_rows <= int4.SKINNY_ROWS)
        assert not {gemv.__name__, skinny.__name__} & modules
        missing = [kernel for kernel in recorded.values() if kernel.id not in known]
        assert not missing, (num_rows, missing)


def check_segments() -> None:
    """The attention of a large model's segments, of any length and behind any past."""
    hopper.has_compiler = lambda: True
    pretend_device(H200)
    first, *later = dry_run(_worker(LARGE, token_budget=2048), LARGE)
    assert "torch._dynamo" not in sys.modules  # torch's compiler, whose import lasts for seconds
    assert [kernel.name for kernel in first if kernel.module == extend_attention.__name__] == [
        "attend_items"
    ]
    assert not [kernel for kernel in first if kernel.module == library.__name__]
    known = {kernel.id for kernels in (first, *later) for kernel in kernels}
    large = read_model_config(LARGE)
    mixer = large.attention
    heads = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
    shape = Shape(*heads, _worker(LARGE).block_size, torch.bfloat16)
    for start, num_rows in product((0, 77, 8192, 38_000), (2, 33, 300, 2048)):
        with record_launches() as recorded:
            attend_alone(shape, ExtendSegment(0, num_rows, start, 0))
        missing = [kernel for kernel in recorded.values() if kernel.id not in known]
        assert not missing, (start, num_rows, missing)


def check_long_segments() -> None:
    """What blends the library's two halves of a long segment is known before anybody can ask it."""
    pretend_device(H200)
    first = next(dry_run(_worker(LARGE, token_budget=16_384), LARGE))
    assert [kernel.name for kernel in first if kernel.module == library.__name__] == [
        "_blend_kernel"
    ]


@cache
def _layer(change: Callable[[LayerWeights], LayerWeights] | None) -> LayerWeights:
    shape = read_model_config(LARGE).with_layers([0])
    return draw_weights(shape, META, torch.bfloat16, change=change).layers[0]


def _multiply(
    num_rows: int,
    *,
    invariant: bool,
    change: Callable[[LayerWeights], LayerWeights] | None = None,
) -> None:
    """The products of a layer but the last, of which fewer rows are wanted."""
    layer = _layer(change)
    hidden, mixed, gated = [
        torch.empty(num_rows, weight.shape[1], dtype=torch.bfloat16, device=META)
        for weight in (layer.qkv, layer.out, layer.down)
    ]
    norm_linear(hidden, layer.input_norm, 1e-6, layer.qkv, invariant=invariant)
    linear_add(mixed, layer.out, hidden, invariant=invariant)
    norm_swiglu(hidden, layer.mlp_norm, 1e-6, layer.gate_up, invariant=invariant)
    linear_add(gated, layer.down, hidden, invariant=invariant)


def check_compiled_ahead() -> None:
    """The compiler's kernels are those that the start finds: it compiles none."""
    room = Path(os.environ["TRITON_CACHE_DIR"])
    # In float32 a start needs half as many kernels.
    config = _worker(write_tiny_model(room / "model"), dtype="float32")
    ahead = CompileAhead(compiler_command(H200), config)
    ahead.model_is_at(Path(config.model))
    driver.set_active(TritonCard())
    ahead.watch()
    counts = watch_kernel_cache()
    _start(config)
    assert counts.num_compiled == 0
    assert ahead.num_left == 0
    assert counts.num_found > 15
    assert not ahead.errors
    ahead._listener.join()
    assert is_complete(config, H200), ahead.summary()
    assert not is_complete(msgspec.structs.replace(config, max_seqs=6), H200)
    print(json.dumps([counts.num_found, ahead.num_compiled]))


if __name__ == "__main__":
    _zero_tokens()
    knobs.runtime.jit_cache_hook = None
    run_checks(globals())
