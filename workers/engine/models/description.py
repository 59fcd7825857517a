"""What a network consists of: its layers, their norms and mixers, and the names of its tensors.

Owns the words in which a family describes its models. Loading, merging, quantising, memory and
graphs follow from them. Must not know tensors, files of a family, nor how anything is computed.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from kernels.delta_rule import DeltaSizes
from kernels.experts import Activation, Routing
from workers.engine.load.quantize import StoredFormat


class RopeKind(StrEnum):
    """How the frequencies of a rotation follow from its base; `angles.py` has the formulas."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONG = "longrope"
    PROPORTIONAL = "proportional"


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """A rotation of the first `dim` dimensions of a head, which pairs the two halves of these.

    `factor` stretches the window of `original` tokens that the model was first trained with; llama3
    and YaRN blend between the bounds `low` and `high`. longrope has a divisor for each pair, and
    `long_divisors` for windows beyond `original`. Cosines and sines are multiplied by `magnitude`.
    Queries are multiplied by 1 + `growth` ln(1 + floor(position / `original`)). In a proportional
    rotation `dim` is the whole head, only the first `pairs` pairs turn, and the other pairs do not.
    """

    dim: int
    theta: float
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 1.0
    truncate: bool = True
    magnitude: float = 1.0
    divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()
    growth: float = 0.0
    pairs: int = 0


class HeadSizes(NamedTuple):
    """The heads of an attention; layers with equal ones share the memory of keys and values, and
    what is prepared for a step. Those that keep only their window (`in_window`) have a memory of
    their own, whose blocks a table of its own names.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    in_window: bool = False


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Softmax attention over cached keys and values.

    Scores are products times `scale`. With a `window` a token sees itself and the `window` - 1
    tokens before it, else all tokens before it; if it `sees_ahead`, also all tokens of its segment.
    `head_norms`: queries and keys are normed, head by head. `out_gate`: the output is multiplied by
    the sigmoid of a product of the same width, whose rows lie behind each head's query rows in a
    checkpoint. `sinks`: each head has a score of its own, which no value answers: it only takes
    weight from the others.

    `value_norms`: values are normed too, without weights. `keys_are_values`: one product makes
    both, which differ by their norms and the rotation. With `borrows` a layer has queries alone,
    and reads the keys and values of the last layer before it with the same heads and window that
    makes its own. With `keeps_window` the engine keeps no keys and values but those of its window.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    scale: float
    value_norms: bool = False
    keys_are_values: bool = False
    borrows: bool = False
    window: int = 0
    keeps_window: bool = False
    sees_ahead: bool = False
    head_norms: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    out_gate: bool = False
    sinks: bool = False

    @property
    def is_partial(self) -> bool:
        """Whether some dimensions of a head are not turned."""
        return self.rope.dim != self.head_dim

    @property
    def query_size(self) -> int:
        """Columns of all queries, and of the attention's output."""
        return self.num_heads * self.head_dim

    @property
    def sizes(self) -> HeadSizes:
        """The heads."""
        return HeadSizes(self.num_heads, self.num_kv_heads, self.head_dim, self.keeps_window)

    @property
    def side_rows(self) -> tuple[int, int, int]:
        """Rows of the products of queries, keys and values, without those of output gates."""
        key = 0 if self.borrows else self.num_kv_heads * self.head_dim
        return self.query_size, key, key


class Latent(Attention, frozen=True, kw_only=True):
    """Latent attention (`kernels.latent` has its forms). The heads are those of the absorbed form:
    all share one cached row, of `rank` numbers and those that turn, which is their key, and whose
    first `rank` numbers are their value.

    A head's query has `plain_dim` dimensions ahead of those that turn; a product of `query_rank`
    numbers makes queries, 0: of the hidden state itself. `interleaved`: a checkpoint pairs
    neighbours where the kernels pair halves.
    """

    rank: int
    plain_dim: int
    value_dim: int
    query_rank: int = 0
    interleaved: bool = True

    @property
    def is_partial(self) -> bool:
        """False: the dimensions that turn are stored apart, so no row moves."""
        return False

    @property
    def query_size(self) -> int:
        """Columns of the attention's output."""
        return self.num_heads * self.value_dim

    @property
    def query_rows(self) -> int:
        """Rows of the product that makes all heads' queries."""
        return self.num_heads * (self.plain_dim + self.rope.dim)

    @property
    def side_rows(self) -> tuple[int, int, int]:
        """Rows of the first product: of queries, or what makes them, and of what is cached."""
        return self.query_rank or self.query_rows, self.head_dim, 0


class DeltaRule(msgspec.Struct, frozen=True, kw_only=True):
    """The gated delta rule over a state per sequence (`kernels.delta_rule`, which has the formulas
    and the meaning of the sizes), behind a convolution of `conv_width` rows.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def sizes(self) -> DeltaSizes:
        """The sizes as the kernels take them."""
        return DeltaSizes(self.num_key_heads, self.num_value_heads, self.key_dim, self.value_dim)

    @property
    def matrix_numbers(self) -> int:
        """Numbers of one sequence's state in a layer, float32."""
        return self.num_value_heads * self.key_dim * self.value_dim

    @property
    def tail_numbers(self) -> int:
        """Numbers of the rows that the convolution looks back to, in the rows' dtype."""
        return (self.conv_width - 1) * self.sizes.columns


class Gate(StrEnum):
    """What a gated feed-forward network applies to its gates; the values are config.json's."""

    SILU = "silu"
    GELU_TANH = "gelu_pytorch_tanh"


class Dense(msgspec.Struct, frozen=True, kw_only=True):
    """A gated feed-forward network that every token goes through, `width` gates wide."""

    width: int
    gate: Gate = Gate.SILU


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture: every token goes through a few of many gated networks, each `width` gates wide.

    `routing` says how many there are and how they are chosen, `activation` what they apply
    (`kernels.experts` has the meaning of both). Every token also goes through a shared one of
    `shared_width` gates, unless that is 0; with `shared_gate` that is multiplied by the sigmoid of
    a product. `biased`: router and experts add biases. `choice_bias`: the router has one by which
    it only chooses. `apart`: router, experts and the shared one each norm the layer's input by
    themselves, what experts and the shared one make is normed before it is added, and each expert
    has a scale.
    """

    width: int
    routing: Routing
    activation: Activation = Activation()
    shared_width: int = 0
    shared_gate: bool = False
    biased: bool = False
    choice_bias: bool = False
    apart: bool = False
    gate: Gate = Gate.SILU
    """The gate of the shared expert."""

    @property
    def num_experts(self) -> int:
        """The number of experts among which those of a token are chosen."""
        return self.routing.num_experts


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """`x += mixer(norm(x)); x += mlp(norm(x))`; with `branch_norms` each summand is normed too.

    With `side_width` a third summand is made of the token's side input for the layer, a row of
    `side_width` numbers: the gelu of a product of x is multiplied by the side input, brought back
    to the width of x by another product, and normed. With `scaled` the layer's result is multiplied
    by one stored number.
    """

    mixer: Attention | DeltaRule
    mlp: Dense | Experts
    branch_norms: bool = False
    side_width: int = 0
    scaled: bool = False


class TensorNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of tensors in a family's checkpoints.

    A checkpoint has one of the `prefixes` before the names of the network's tensors. Names of a
    layer's modules follow `layers.N.`; those of a delta rule follow `delta` too. The matrices of a
    tuple are merged in its order. Names that begin with one of `skipped` are no part of the
    network.

    The products of a delta rule are those of `delta_in` and `delta_gates`; where one has all, its
    rows lie by key head, each with its queries, keys, values and z, or b and a.

    Of a mixture's modules those of expert N follow `experts.N.`, those of the shared one `shared.`;
    both are called as in a dense network (`gate_up`, `down`). Where all experts are in one tensor
    that is `fused_gate_up` or `fused_down` behind `experts.`; if they `alternate`, gates and ups
    do, and the tensors are transposed.
    """

    prefixes: tuple[str, ...] = ("model.",)
    head: str = "lm_head"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    v_norm: str = "self_attn.v_norm"
    query_down: str = "self_attn.q_a_proj"
    query_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    latent_down: str = "self_attn.kv_a_proj_with_mqa"
    latent_norm: str = "self_attn.kv_a_layernorm"
    latent_up: str = "self_attn.kv_b_proj"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    choice_bias: str = "e_score_correction_bias"
    experts: str = "mlp.experts"
    fused_gate_up: str = "gate_up_proj"
    fused_down: str = "down_proj"
    alternate: bool = False
    shared: str = "mlp.shared_expert"
    shared_gate: str = "mlp.shared_expert_gate"
    mixer_norm: str = "input_layernorm"
    mixer_out_norm: str = ""
    mlp_norm: str = "post_attention_layernorm"
    mlp_out_norm: str = ""
    delta: str = "linear_attn"
    delta_in: tuple[str, ...] = ("in_proj_qkv", "in_proj_z")
    delta_gates: tuple[str, ...] = ("in_proj_b", "in_proj_a")
    sinks: str = "self_attn.sinks"
    scale: str = "layer_scalar"
    experts_norm: str = "pre_feedforward_layernorm_2"
    experts_out_norm: str = "post_feedforward_layernorm_2"
    shared_out_norm: str = "post_feedforward_layernorm_1"
    router_norm: str = "router.scale"
    expert_scales: str = "router.per_expert_scale"
    side_embedding: str = "embed_tokens_per_layer"
    side_in: str = "per_layer_model_projection"
    side_in_norm: str = "per_layer_projection_norm"
    side_gate: str = "per_layer_input_gate"
    side_out: str = "per_layer_projection"
    side_norm: str = "post_per_layer_input_norm"
    skipped: tuple[str, ...] = ()


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A network. `dtype` is that of the checkpoint, `stored` the format of the layers' matrices;
    `promised` are what `promised_by` gives for it.

    Norms multiply by `norm_offset` plus the stored weights. Embedded tokens are multiplied by
    `embedding_scale`, rounded to the weights' dtype. A model that `embeds` was trained to give
    embeddings, the last token's state behind the final norm; its checkpoint may lack a head.
    Logits z become `logit_cap` tanh(z / `logit_cap`), unless that is 0. Side inputs of layers are
    made of a further embedding of `side_vocab` tokens, and of a product of the embedded token.
    `head_ranks` divide the head's rows among them, where this is one rank's share of a network.
    """

    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[Layer, ...]
    max_position_embeddings: int
    rms_norm_eps: float
    tied: bool
    dtype: str
    eos_ids: frozenset[int]
    stored: StoredFormat = StoredFormat.DENSE
    promised: tuple[str, ...] = ()
    norm_offset: int = 0
    embedding_scale: float = 1.0
    embeds: bool = False
    logit_cap: float = 0.0
    side_vocab: int = 0
    head_ranks: int = 1
    names: TensorNames = TensorNames()

    @property
    def num_layers(self) -> int:
        """The number of layers of any kind."""
        return len(self.layers)

    @property
    def attentions(self) -> list[Attention]:
        """The attentions of all layers that have one."""
        return [layer.mixer for layer in self.layers if isinstance(layer.mixer, Attention)]

    @property
    def attention(self) -> Attention:
        """The first attention; only `head_sizes` tells of others' heads."""
        return self.attentions[0]

    @property
    def head_sizes(self) -> tuple[HeadSizes, ...]:
        """The kinds of heads, in the order of the first layers that have them; those that keep only
        their window come last.
        """
        kinds = dict.fromkeys([mixer.sizes for mixer in self.attentions])
        return tuple(sorted(kinds, key=lambda sizes: sizes.in_window))

    @property
    def kept_window(self) -> int:
        """The window, in tokens, of the layers that keep nothing else; 0 if all keep all."""
        return max([mixer.window for mixer in self.attentions if mixer.keeps_window], default=0)

    def keeping_windows(self) -> "ModelDescription":
        """The network, whose layers with a window keep nothing else."""
        layers = [
            msgspec.structs.replace(
                layer, mixer=msgspec.structs.replace(layer.mixer, keeps_window=True)
            )
            if isinstance(layer.mixer, Attention) and layer.mixer.window
            else layer
            for layer in self.layers
        ]
        return msgspec.structs.replace(self, layers=tuple(layers))

    @property
    def key_owners(self) -> tuple[int, ...]:
        """For each attention the place, among attentions, of the one whose keys and values it
        reads. Raises `ValueError` for one that borrows where nothing is to be had.
        """
        last: dict[tuple[HeadSizes, int], int] = {}
        owners = []
        for place, mixer in enumerate(self.attentions):
            kind = mixer.sizes, mixer.window
            if not mixer.borrows:
                last[kind] = place
            elif kind not in last:
                raise ValueError(f"attention {place} has no keys and values to borrow")
            owners.append(last[kind])
        return tuple(owners)

    @property
    def side_width(self) -> int:
        """Numbers of a token's side inputs of all layers."""
        return sum([layer.side_width for layer in self.layers])

    @property
    def side_numbers(self) -> int:
        """Numbers in what makes side inputs, beside the layers."""
        width = self.side_width
        return width * (self.side_vocab + self.hidden_size) if width else 0

    @property
    def is_latent(self) -> bool:
        """Whether attention is latent; then it is in all layers that have one."""
        return any(isinstance(mixer, Latent) for mixer in self.attentions)

    @property
    def delta_rules(self) -> list[DeltaRule]:
        """The delta rules of all layers that have one; all are alike."""
        return [layer.mixer for layer in self.layers if isinstance(layer.mixer, DeltaRule)]

    @property
    def is_scoped(self) -> bool:
        """Whether any attention has a window or sinks, or scores that are not divided by
        sqrt(head_dim).
        """
        mixers = set(self.attentions)
        return any(
            mixer.window or mixer.sinks or mixer.scale != mixer.head_dim**-0.5 for mixer in mixers
        )

    @property
    def token_numbers(self) -> int:
        """How many numbers one token's keys and values are in all layers that keep all tokens."""
        return sum(
            [sum(mixer.side_rows[1:]) for mixer in self.attentions if not mixer.keeps_window]
        )

    @property
    def window_numbers(self) -> int:
        """How many such numbers one token has in all layers that keep only their window."""
        return sum([sum(mixer.side_rows[1:]) for mixer in self.attentions if mixer.keeps_window])

    def state_bytes(self, item_bytes: int) -> int:
        """Bytes of one sequence's states in all layers, where a number of a row has `item_bytes`; 0
        for a network without.
        """
        rules = self.delta_rules
        return sum([4 * rule.matrix_numbers + item_bytes * rule.tail_numbers for rule in rules])

    def ring_bytes(self, item_bytes: int, num_rows: int) -> int:
        """Bytes of one sequence's ring of `num_rows` rows that may be taken back, in all layers."""
        rules = self.delta_rules
        numbers = sum([rule.sizes.columns + 2 * rule.num_value_heads for rule in rules])
        return item_bytes * num_rows * numbers

    @property
    def mixtures(self) -> list[Experts]:
        """The mixtures of all layers that have one."""
        return [layer.mlp for layer in self.layers if isinstance(layer.mlp, Experts)]

    def mixer_matrices(self, layer: Layer) -> tuple[tuple[int, int], ...]:
        """Rows and columns of the merged products of a layer's mixer: qkv (for a delta rule with
        z), out, and the mixer's gate, which has no rows if there is none. Latent attention also has
        those that make queries, and keys and values, of latents.
        """
        mixer, hidden = layer.mixer, self.hidden_size
        if isinstance(mixer, DeltaRule):
            sizes = mixer.sizes
            rows = sizes.columns + sizes.value_columns
            return (
                (rows, hidden),
                (hidden, sizes.value_columns),
                (2 * sizes.num_value_heads, hidden),
            )
        query = mixer.query_size
        merged = sum(mixer.side_rows)
        first = (merged, hidden), (hidden, query), (query * mixer.out_gate, hidden)
        if not isinstance(mixer, Latent):
            return first
        made = mixer.num_heads * (mixer.plain_dim + mixer.value_dim), mixer.rank
        return *first, (mixer.query_rows if mixer.query_rank else 0, mixer.query_rank), made

    def mlp_matrices(self, layer: Layer) -> tuple[tuple[int, int], ...]:
        """The matrices of gates and ups, and of down; of a mixture these are the stacks of all
        experts, and then come those of the shared one and the router, which has a row more for
        the shared one's gate.
        """
        mlp, hidden = layer.mlp, self.hidden_size
        if isinstance(mlp, Dense):
            return _gated(mlp.width, hidden)
        (rows, _), (_, width) = _gated(mlp.width, hidden)
        count = mlp.num_experts
        stacks = (count * rows, hidden), (count * hidden, width)
        return *stacks, *_gated(mlp.shared_width, hidden), (count + mlp.shared_gate, hidden)

    def matrices(self, layer: Layer) -> tuple[tuple[int, int], ...]:
        """Rows and columns of all merged products of a layer."""
        return *self.mixer_matrices(layer), *self.mlp_matrices(layer), *self.side_matrices(layer)

    def side_matrices(self, layer: Layer) -> tuple[tuple[int, int], ...]:
        """Rows and columns of the products of a layer's side input, if it has one."""
        width, hidden = layer.side_width, self.hidden_size
        return ((width, hidden), (hidden, width)) if width else ()

    @property
    def layer_weights(self) -> int:
        """Numbers in the products of all layers; norms and biases are a thousandth of them."""
        sizes = {layer: sum(r * c for r, c in self.matrices(layer)) for layer in set(self.layers)}
        return sum([sizes[layer] for layer in self.layers])

    @property
    def active_weights(self) -> int:
        """Like `layer_weights`, but counts only the weights that multiply one token."""
        idle = [
            (mlp.num_experts - mlp.routing.num_active) * 3 * mlp.width * self.hidden_size
            for mlp in self.mixtures
        ]
        return self.layer_weights - sum(idle)

    def row_numbers(self, layer: Layer) -> int:
        """Numbers that one token's products in a layer put out."""
        mlp = layer.mlp
        mixed = sum([rows for rows, _ in self.mixer_matrices(layer)])
        if isinstance(mlp, Dense):
            return mixed + 3 * mlp.width + self.hidden_size
        active = mlp.routing.num_active * (3 * mlp.width + self.hidden_size)
        return mixed + active + 3 * mlp.shared_width + self.hidden_size + mlp.num_experts

    def sample(self, count: int) -> tuple[int, ...]:
        """The indices of at least `count` layers, among them one of each kind."""
        kinds = {layer: index for index, layer in reversed(list(enumerate(self.layers)))}
        first = sorted(kinds.values())
        return tuple(sorted({*first, *_others(first, self.num_layers, count)}))

    def with_layers(self, chosen: Iterable[int]) -> "ModelDescription":
        """The network with these layers only."""
        layers = tuple([self.layers[index] for index in chosen])
        return msgspec.structs.replace(self, layers=layers)


def _gated(width: int, hidden: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of gates and ups, and of down."""
    return (2 * width, hidden), (hidden, width)


def _others(first: list[int], num_layers: int, count: int) -> list[int]:
    rest = [index for index in range(num_layers) if index not in first]
    return rest[: max(0, count - len(first))]
