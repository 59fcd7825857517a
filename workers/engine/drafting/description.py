"""What a drafter's config.json says, as plain data, and whether it fits a target.

Owns the formats of published drafters and the one line for one that is not for this target. Must
not know tensors.

Sources: DFlash z-lab/dflash, DFlash 2 `qwen3_dflash2.py` of vLLM, EAGLE-3 SafeAILab/EAGLE, MTP
`qwen3_5_mtp.py` of vLLM, and DeepSeek-V3's README_WEIGHTS.md.
"""

from pathlib import Path
from typing import Final

import msgspec

from protocol.errors import ConfigError
from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder_keys import FULL, SLIDING, attention, decoder, dense
from workers.engine.models.description import Attention, Layer, ModelDescription
from workers.engine.models.families import MODEL_TYPES
from workers.model_dir import CONFIG_NAME, read_json

_BLOCK: Final = 16
"""The block size of DFlash where the file does not say it."""

_REFUSED: Final = (
    "use_swa", "attention_sink_bias", "pure_draft_prefix_len", "shift_label", "gru_hidden_dim",
    "final_logit_softcapping",
)  # fmt: skip
"""Keys of DFlash variants that are not supported: a file that turns one on is refused."""

_DEFAULTS: Final = {"attention_value_scale": 1.0, "output_multiplier": 1.0}
"""Numbers of DFlash variants that are not supported, with the value that changes nothing."""

_HEAD_LAYERS: Final = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
"""How many layers an MTP head has; files of Qwen3-Next have the second spelling, if any."""


class Convolution(msgspec.Struct, frozen=True):
    """A convolution of DFlash 2: a channel mixes its value with those of the rows before it, `size`
    rows in all; `group` channels share what a row adds to their weights.
    """

    size: int
    group: int


class Selector(msgspec.Struct, frozen=True):
    """The selector of DFlash 2: the best `top_k` tokens of each place are scored beside the one
    before, by vectors of `rank` numbers.
    """

    rank: int
    top_k: int


class DFlashShape(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts a block at once: the placeholders behind the last token become tokens. `taps` are the
    target's layers whose states it attends to.

    `drafts_own_place`: a placeholder becomes the token at its own position; else each row, the last
    token's too, drafts the one behind it. `vocab_size`: tokens that it can draft.
    """

    network: ModelDescription
    block_size: int
    taps: tuple[int, ...]
    mask_id: int
    drafts_own_place: bool
    vocab_size: int
    embedding_scale: float = 1.0
    convolution: Convolution | None = None
    selector: Selector | None = None

    @property
    def max_depth(self) -> int:
        """The most drafts that one block has."""
        return self.block_size - self.drafts_own_place


class MtpNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of an MTP head's modules. All begin with `own`; its layer is the one of number
    `layer` behind `layers`.
    """

    own: str = "mtp."
    layers: str = "mtp."
    layer: int = 0
    fc: str = "mtp.fc"
    embedding_norm: str = "mtp.pre_fc_norm_embedding"
    state_norm: str = "mtp.pre_fc_norm_hidden"
    norm: str = "mtp.norm"

    @classmethod
    def behind(cls, prefix: str, num_layers: int) -> "MtpNames":
        """The names of a head that is a further layer behind the model's `num_layers`, as
        DeepSeek-V3 publishes it. The embedding and the output head that may be stored there are
        copies of the model's.
        """
        own = f"{prefix}layers.{num_layers}."
        return cls(
            own=own, layers=prefix, layer=num_layers, fc=f"{own}eh_proj",
            embedding_norm=f"{own}enorm", state_norm=f"{own}hnorm", norm=f"{own}shared_head.norm",
        )  # fmt: skip


class MtpShape(msgspec.Struct, frozen=True, kw_only=True):
    """A head of one layer, which is given the target's last state and the token behind it."""

    network: ModelDescription
    names: MtpNames = MtpNames()


class Eagle3Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A layer that is given a mixture of three of the target's states and the token behind them.

    `feeds_normed`: what it gives itself is normed (EAGLE 3.1); `adds_normed`: its layer adds to the
    normed state.
    """

    network: ModelDescription
    taps: tuple[int, ...]
    vocab_size: int
    feeds_normed: bool
    adds_normed: bool


Shape = DFlashShape | MtpShape | Eagle3Shape


def read_drafter(path: Path, target: ModelDescription) -> Shape:
    """The drafter in the directory `path`. Raises `ConfigError`, one line, for one that is not made
    for such a target or that we cannot run.
    """
    file = ConfigFile(path / CONFIG_NAME, read_json(path / CONFIG_NAME))
    names = " ".join(map(str, file.raw.get("architectures") or []))
    if "DFlash" in names or "dflash_config" in file.raw:
        return _dflash(file, target)
    if "Eagle3" in names or "eagle_config" in file.raw:
        return _eagle3(file, target)
    text = _text(file)
    if _head_key(text):
        return _mtp(file, text, target)
    raise file.error(
        f"{names or 'no architecture'} is no drafter that we know: take a DFlash, an EAGLE-3, or a "
        "checkpoint with an MTP head"
    )


def names_head(path: Path) -> bool:
    """Whether the config.json in the directory `path` names an MTP head."""
    file = ConfigFile(path / CONFIG_NAME, read_json(path / CONFIG_NAME))
    return bool(_head_key(_text(file)))


def _head_key(text: ConfigFile) -> str:
    """The key by which the file says that there is a head; empty if there is none."""
    return next((key for key in _HEAD_LAYERS if text.raw.get(key)), "")


def _text(file: ConfigFile) -> ConfigFile:
    """The part of the file of the language model."""
    text = file.table("text_config")
    return text if text.raw else file


def promised_length(path: Path) -> float | None:
    """Tokens of a pass that the drafter in the directory `path` reached on held-out text, if its
    config.json says so.
    """
    found = read_json(path / CONFIG_NAME).get("herma")
    length = found.get("length") if isinstance(found, dict) else None
    return float(length) if isinstance(length, int | float) and length >= 1 else None


def _check_fit(file: ConfigFile, target: ModelDescription) -> None:
    """Compare what a drafter's file says of its target."""
    _check_sizes(file, file.count("hidden_size"), file.count("vocab_size"), target)
    if (stated := file.raw.get("num_target_layers")) is None:
        return
    if stated != target.num_layers:
        why = f"its number of target layers is {stated}, and the model's is {target.num_layers}"
        raise _misfit(file, why)


def _check_sizes(file: ConfigFile, hidden: int, vocabulary: int, target: ModelDescription) -> None:
    """Compare what a drafter shares with its target."""
    for what, mine, theirs in (
        ("hidden size", hidden, target.hidden_size),
        ("vocabulary", vocabulary, target.vocab_size),
    ):
        if mine != theirs:
            raise _misfit(file, f"its {what} is {mine}, and the model's is {theirs}")


def _misfit(file: ConfigFile, why: str) -> ConfigError:
    return file.error(f"this drafter is for another model, as {why}: take the one for this model")


def _taps(
    file: ConfigFile, taps: object, target: ModelDescription, offset: int = 0
) -> tuple[int, ...]:
    """Layers whose output is read; the file's numbers are those plus `offset`."""
    if not isinstance(taps, list) or not all(isinstance(tap, int) for tap in taps) or not taps:
        raise file.error(f"its target layers are {taps!r}, not a list of numbers: fetch it again")
    found = tuple([tap - offset for tap in taps])
    if min(found) < 0 or max(found) >= target.num_layers or len(set(found)) != len(found):
        raise _misfit(file, f"it reads layers {taps} of one that has {target.num_layers}")
    return found


def _dflash(file: ConfigFile, target: ModelDescription) -> DFlashShape:
    own = file.table("dflash_config")
    merged = ConfigFile(file.path, {**file.raw, **own.raw})
    merged.refuse(*_REFUSED)
    for key, default in _DEFAULTS.items():
        if (number := merged.number(key, default)) != default:
            raise merged.lacks(f"{key} = {number}")
    if str(merged.raw.get("projector_type") or "linear") != "linear":
        raise merged.lacks(f"projector_type = {merged.raw['projector_type']!r}")
    if not merged.flag("use_aux_hidden_state", default=True):
        raise merged.lacks("use_aux_hidden_state = false")
    _check_fit(file, target)
    mask_id = merged.raw.get("mask_token_id")
    if not isinstance(mask_id, int) or not 0 <= mask_id < target.vocab_size:
        raise merged.error(f"mask_token_id is {mask_id!r}, not a token: fetch it again")
    taps = merged.raw.get("target_layer_ids") or _even_taps(
        file.count("num_hidden_layers"), target.num_layers
    )
    return DFlashShape(
        network=decoder(file, "DFlash", _dflash_layers(file, own)),
        block_size=merged.count("block_size", _BLOCK),
        taps=_taps(merged, taps, target),
        mask_id=mask_id,
        drafts_own_place=not merged.flag("sample_from_anchor"),
        vocab_size=merged.count("draft_vocab_size", target.vocab_size),
        embedding_scale=merged.number("input_embedding_scale", 1.0),
        convolution=_convolution(merged),
        selector=_selector(merged),
    )


def _even_taps(count: int, depth: int) -> list[int]:
    """The layers that z-lab's code taps where a file names none."""
    if count == 1:
        return [depth // 2]
    return [round(1 + index * (depth - 4) / (count - 1)) for index in range(count)]


def _dflash_layers(file: ConfigFile, own: ConfigFile) -> list[Layer]:
    """A layer sees the whole block, unless it has a window or the file says that it is causal."""
    count = file.count("num_hidden_layers")
    kinds = file.words("layer_types", count, (FULL, SLIDING)) or (FULL,) * count
    outer, inner = file.raw.get("is_causal"), own.raw.get("causal")
    stated = inner if outer is None else outer
    layers = []
    for kind in kinds:
        is_sliding = kind == SLIDING
        is_causal = is_sliding if stated is None else bool(stated)
        if is_sliding and not is_causal:
            raise file.lacks("a window that sees ahead")
        window = file.count("sliding_window") if is_sliding else 0
        mixer = attention(file, window=window, sees_ahead=not is_causal, head_norms=True)
        layers.append(Layer(mixer=mixer, mlp=dense(file)))
    return layers


def _convolution(merged: ConfigFile) -> Convolution | None:
    if not merged.raw.get("conv_kernel_size"):
        return None
    found = Convolution(merged.count("conv_kernel_size"), merged.count("conv_group_size", 16))
    if merged.count("hidden_size") % found.group:
        raise merged.lacks(f"conv_group_size = {found.group}")
    return found


def _selector(merged: ConfigFile) -> Selector | None:
    if not merged.raw.get("selector_rank"):
        return None
    return Selector(merged.count("selector_rank"), merged.count("selector_top_k", 16))


def _eagle3(file: ConfigFile, target: ModelDescription) -> Eagle3Shape:
    hidden = file.count("target_hidden_size", file.count("hidden_size"))
    if hidden != target.hidden_size:
        raise _misfit(file, f"it reads {hidden} numbers, and the model has {target.hidden_size}")
    _check_fit(file, target)
    file.refuse("norm_before_fc", "fc_norm")
    if file.count("num_hidden_layers", 1) != 1:
        raise file.lacks(f"num_hidden_layers = {file.raw['num_hidden_layers']}")
    own = file.table("eagle_config")
    if not own.flag("use_aux_hidden_state", default=True):
        raise file.lacks("use_aux_hidden_state = false")
    depth = target.num_layers
    stated = own.raw.get("eagle_aux_hidden_state_layer_ids") or [2, depth // 2, depth - 3]
    layer = Layer(mixer=attention(file), mlp=dense(file))
    return Eagle3Shape(
        network=decoder(file, "EAGLE-3", [layer]),
        taps=_taps(file, stated, target, offset=1),  # the file counts the inputs of layers
        vocab_size=file.count("draft_vocab_size", target.vocab_size),
        feeds_normed=file.flag("norm_output"),
        adds_normed=file.flag("norm_before_residual"),
    )


def _mtp(file: ConfigFile, text: ConfigFile, target: ModelDescription) -> MtpShape:
    """The shape of an MTP head, whose layer is of the family's kind of full attention, and like the
    last of these. `text` is the language model's part of the file.
    """
    describe = MODEL_TYPES.get(str(file.raw.get("model_type")))
    if describe is None:
        raise file.lacks(f"an MTP head of model_type {file.raw.get('model_type')!r}")
    if text.raw.get("mtp_use_dedicated_embeddings"):
        raise text.lacks("mtp_use_dedicated_embeddings = true")
    described = describe(file)
    _check_sizes(file, described.hidden_size, described.vocab_size, target)
    mixers = [layer.mixer for layer in described.layers]
    plain = [i for i, each in enumerate(mixers) if isinstance(each, Attention) and not each.window]
    if not plain:
        raise text.lacks("an MTP head whose layers have windows")
    if (count := text.count(key := _head_key(text))) != 1:
        raise text.lacks(f"{key} = {count}")
    network, names = described.with_layers(plain[-1:]), MtpNames()
    if described.is_latent:
        names = MtpNames.behind(described.names.prefixes[0], described.num_layers)
    return MtpShape(network=network, names=names)
