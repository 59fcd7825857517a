"""One TOML file, decoded strictly."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import (
    SpeculationConfig,
    WorkerConfig,
    builtin_config,
    builtin_models,
    load_config,
    parse_config,
    read_text,
)
from protocol.errors import ConfigError

GOOD = """
[gateway]
port = 9000

[[models]]
name = "small"
aliases = ["default"]
profile = "latency"
fallback = [{ provider = "cloud", model = "vendor/small" }]

[[models]]
name = "large"

[[workers]]
name = "gpu0"
model = "/models/small"
serves = "small"

[[workers]]
name = "gpu1"
model = "/models/large"
serves = "large"
max_seqs = 7

[providers.cloud]
base_url = "https://cloud.example/v1"
api_key_env = "CLOUD_KEY"

[[keys]]
name = "alice"
hash = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
"""


def test_profiles_fill_what_a_worker_leaves_open() -> None:
    """A worker takes the limits of its model's profile, key by key, and dials this gateway."""
    config = parse_config(GOOD, "herma.toml")
    first, second = config.workers
    assert (first.max_seqs, first.token_budget, first.max_context) == (None, 2048, 204_800)
    assert (second.max_seqs, second.token_budget, second.max_context) == (7, 4096, 131_072)
    assert (first.max_gap_ms, second.max_gap_ms) == (25, 80)
    assert first.gateways == (config.gateway.worker_bind,)


def test_the_gap_is_the_workers_else_the_models_else_the_profiles() -> None:
    """The model's is for all its workers that say nothing of their own."""
    of_model = GOOD.replace('name = "large"\n', 'name = "large"\nmax_gap_ms = 70\n', 1)
    assert [one.max_gap_ms for one in parse_config(of_model, "x").workers] == [25, 70]
    of_worker = of_model.replace("max_seqs = 7", "max_gap_ms = 12.5")
    assert [one.max_gap_ms for one in parse_config(of_worker, "x").workers] == [25, 12.5]


def test_auto_drafts_by_what_comes_with_the_model() -> None:
    """The head that ships is a directory of that name; for other models earlier text."""
    model = next(iter(builtin_models()))
    (shipped,) = [path.name for path in (builtin_models()[model] / "drafters").iterdir()]
    for name, drafter in ((model, f"{model}/{shipped}"), ("/m", "suffix")):
        worker = WorkerConfig("w", name, "m", (), token_budget=1, speculation="auto")
        assert worker.drafting == SpeculationConfig(drafter)


def test_what_one_card_has_is_refused_beside_tensor_parallel() -> None:
    key = 'embedding = "host"'
    text = f'[[models]]\nname = "m"\n[[workers]]\nname = "w"\nmodel = "/m"\n{key}\n'
    parse_config(text, "x")
    with pytest.raises(ConfigError, match="is for one card"):
        parse_config(f"{text}tensor_parallel = 2\n", "x")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('tensor_parallel = 2\ndevice = "cuda:2"', "takes 2: name them in `devices`"),
        (
            'tensor_parallel = 2\ndevice = "cuda:5"\ndevices = ["cuda:0", "cuda:1"]',
            "leave `device`",
        ),
        ('tensor_parallel = 2\ndevices = ["cuda:1", "cuda:1"]', "a card of its own for each"),
        ('tensor_parallel = 2\ndevices = ["cuda:0", "cuda"]', "a card of its own for each"),
        ('tensor_parallel = 2\ndevices = ["cuda:0", "cpu"]', "a card of its own for each"),
        ('devices = ["cuda:1"]', "name the card in `device`"),
    ],
)
def test_a_card_that_would_not_be_taken_is_no_setting(keys: str, said: str) -> None:
    """The ranks take the first cards or `devices`; `device` was ignored beside them, and `devices`
    without ranks.
    """
    text = f'[[models]]\nname = "m"\n[[workers]]\nname = "w"\nmodel = "/m"\n{keys}\n'
    with pytest.raises(ConfigError, match=said):
        parse_config(text, "x")


@pytest.mark.parametrize(
    ("keys", "cards"),
    [
        ("", ("auto",)),
        ('device = "cuda:3"', ("cuda:3",)),
        ("tensor_parallel = 2", ("cuda:0", "cuda:1")),
        ('tensor_parallel = 2\ndevices = ["cuda:2", "cuda:3"]', ("cuda:2", "cuda:3")),
        ('tensor_parallel = 2\ndevice = "cpu"', ("cpu", "cpu")),
        ('tensor_parallel = 2\ncache = { host = "0" }', ("cuda:0", "cuda:1")),
    ],
)
def test_the_cards_of_a_worker_are_those_that_its_ranks_take(
    keys: str, cards: tuple[str, ...]
) -> None:
    text = f'[[models]]\nname = "m"\n[[workers]]\nname = "w"\nmodel = "/m"\n{keys}\n'
    assert parse_config(text, "x").workers[0].host_devices == cards


@pytest.mark.parametrize(
    ("model", "worker", "idle_s"),
    [
        ('residency = "on-demand"\nidle_s = 5', "", 5),
        ('residency = "on-demand"\nidle_s = 5', 'residency = "always"', None),
        ("idle_s = 5", 'residency = "on-demand"', 5),
        ("idle_s = 5", 'residency = "on-demand"\nidle_s = 7', 7),
    ],
)
def test_a_worker_takes_turns_as_its_model_unless_it_says_otherwise(
    model: str, worker: str, idle_s: float | None
) -> None:
    """One that stays resident has no use for its model's `idle_s`, and is no mistake for it."""
    workers = f'[[workers]]\nname = "w"\nmodel = "/m"\n{worker}\n'
    config = parse_config(f'[[models]]\nname = "m"\n{model}\n{workers}', "x")
    assert config.workers[0].idle_s == idle_s


@pytest.mark.parametrize(("tokens", "fits"), [(4096, True), (4065, True), (4064, False)])
def test_keys_and_values_hold_the_window_that_is_asked_for(tokens: int, fits: bool) -> None:
    """The window was cut without a word. Blocks of 32 tokens are rounded up."""
    keys = f"kv_tokens = {tokens}\ncontext_length = 4096\n"
    text = f'[[models]]\nname = "m"\n[[workers]]\nname = "w"\nmodel = "/m"\n{keys}'
    if fits:
        assert parse_config(text, "x").workers[0].kv_tokens == tokens
        return
    with pytest.raises(ConfigError, match="kv_tokens = 4064 hold no window of context_length"):
        parse_config(text, "x")


def test_a_model_whose_requests_stay_here_does_not_send_them_away_while_it_wakes() -> None:
    text = (
        '[providers.p]\nbase_url = "http://p/v1"\n[[models]]\nname = "m"\ncloud = "never"\n'
        'residency = "on-demand"\nwhile_waking = "cloud"\n'
        'fallback = [{ provider = "p", model = "x" }]'
    )
    with pytest.raises(ConfigError, match='cloud = "never": remove one'):
        parse_config(text, "x")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://p/v1/chat/completions", "ends in /chat/completions, which each request adds"),
        ("https://p/v1/responses/", "ends in /responses"),
        ("https://p/v1/models", "ends in /models"),
        ("https://p/openai/v1?api-version=preview", "has a query or a fragment"),
    ],
)
def test_a_base_url_behind_which_no_path_can_stand_is_refused(url: str, said: str) -> None:
    """Every request would be a 404 of the provider."""
    with pytest.raises(ConfigError, match=f"base_url {said}"):
        parse_config(f'[providers.p]\nbase_url = "{url}"\n', "x")


def test_a_worker_serves_the_only_model_unless_it_says_otherwise() -> None:
    """With one model in the file, `serves` may be left out."""
    config = parse_config('[[models]]\nname = "m"\n[[workers]]\nname = "w"\nmodel = "/m"', "x")
    assert config.workers[0].serves == "m"


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("port = 9000", "prot = 9000", ("herma.toml:3", "`prot`", "`port`", "[gateway]")),
        ("max_seqs = 7", "max_gap_ms = 0", ("[workers[1]] max_gap_ms", "> 0")),
        ("max_seqs = 7", "max_seq = 7", ("`max_seq`", "`max_seqs`", "[workers[1]]")),
        (
            "max_seqs = 7",
            'speculation = "of"',
            ('"of"', 'did you mean "off"', '"auto", "off", or a table { drafter = ... }'),
        ),
        ("max_seqs = 7", 'speculation = "suffix"', ('cannot be "suffix"; Known: "auto"',)),
        ("max_seqs = 7", "speculation = { draftr = 1 }", ("`draftr`", "`drafter`", "speculation]")),
        ("max_seqs = 7", "speculation = { depth = 33 }", ("depth: expected a whole number <= 32",)),
        ("max_seqs = 7", 'speculation = { depth = "x" }', ('Known: "adaptive", or a number',)),
        ("base_url", "base_urls", ("`base_urls`", "`base_url`", "[providers.cloud]")),
        ("provider = ", "providr = ", ("`providr`", "`provider`")),
        ("[gateway]", "[gatway]", ("`gatway`", "`gateway`", "top level")),
        (
            "port = 9000",
            'port = "x"',
            ("herma.toml:3: [gateway] port: expected a whole number, got a text in quotes",),
        ),
        ("port = 9000", "port = 70000", ("herma.toml:3: [gateway] port:", "65535")),
        ("port = 9000", "port = ", ("herma.toml:3: not valid TOML",)),
        (
            "port = 9000",
            "host = localhost",
            ("herma.toml:3: not valid TOML: Invalid value", "; a text stands in quotes"),
        ),
        (
            "port = 9000",
            "host = 127.0.0.1",
            ("herma.toml:3: not valid TOML: Expected newline", "; a text stands in quotes"),
        ),
        ("port = 9000", 'host = "0.0.0.0"\n[k]', ("`k`",)),
        ("port = 9000", 'worker_bind = "tcp://*:1"', ("worker_bind", "curve_secret_file")),
        ('"latency"', '"fastest"', ("`fastest`", "herma.toml:8:", "balanced, latency, throughput")),
        (
            'provider = "cloud"',
            'provider = "clout"',
            ("herma.toml:9:", "`clout`", "[providers.clout]"),
        ),
        ('serves = "large"', 'serves = "huge"', ("`huge`", "large, small")),
        ('aliases = ["default"]', 'aliases = ["large"]', ("`large`", "twice")),
        ("sha256:00", "sha1:00", ("sha256", "herma keys new")),
        ('name = "gpu1"', 'name = "gpu0"', ("`gpu0`", "twice")),
        ('name = "gpu1"', 'name = "gpu1"\ndevice = "gpu"', ("auto, cpu, cuda or cuda:N", "device")),
        ('name = "gpu1"', 'name = "g 1"', ("herma.toml:20: [workers[1]] name:", "letters, digits")),
        ('base_url = "http', 'base_url = "ftp', ("begins with http://", "base_url")),
        (
            "//cloud.example/v1",
            "//[::1",
            ("herma.toml:26: [providers.cloud] base_url", "malformed"),
        ),
        ("//cloud.example/v1", "//", ("herma.toml:26: [providers.cloud] base_url", "host")),
        ("//cloud.example/v1", "//a:99999/v1", ("[providers.cloud] base_url", "65535")),
        (
            'model = "/models/large"',
            'model = "/models/large"\nengine = "vllm"\nurl = "http://a:99999"',
            ("herma.toml:23: [workers[1]] url", "65535"),
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_place(
    old: str, new: str, parts: tuple[str, ...]
) -> None:
    """Each mistake is refused with the file, the place and, where there is one, the remedy."""
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        parse_config(GOOD.replace(old, new, 1), "herma.toml")
    text = str(caught.value)
    assert text.startswith("herma.toml")
    assert "\n" not in text
    assert all(part in text for part in parts), text


TWO = """
[providers.near]
base_url = "https://near.example/v1"

[providers.far]
base_url = "https://far.example/v1"
price = { input = 1, output = 2 }

[[models]]
name = "m"
profile = "latency"
fallback = [
  { provider = "near", model = "n" },
  { provider = "far", model = "f" },
]

[[workers]]
name = "w"
model = "/models/m"
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'model = "f" }',
            'model = "f", parms = {} }',
            "14: unknown key `parms` in [models[0].fall",
        ),
        ('"w"\n', '"w"\nprofile = "latency"\n', "19: unknown key `profile` in [workers[0]]; "),
        ("[providers.far]", "[providers.far]\nread_s = 'x'", "6: [providers.far] read_s: expected"),
        ("1, output = 2", "1", "7: [providers.far.price] needs `output`"),
        ('base_url = "https://far.example/v1"\n', "", "5: [providers.far] needs `base_url`"),
        ("price = {", "limits = 5\nx = {", "7: [providers.far] limits is a table: write [prov"),
        ("[providers.near]\n", "[[providers]]\nname = 'near'\n", "2: `providers` holds"),
        ("[providers.near]\n", "[providers]\n", "3: `base_url` is set in [providers] itself: "),
        ("[[workers]]", "[workers]", "17: `workers` is a list of tables: write [[workers]], or "),
        ("[[models]]", "[models]", "9: `models` is a list of tables: write [[models]], or models"),
        ("[providers.near]\n", "[providers]\nnear = 5\n[x]\n", "3: [providers] near is a table: w"),
        ("[[models]]", "[gateway]\ncurve_worker_keys = 'k'\n[[models]]", "10: [gateway] curve_wor"),
        ("[[models]]", "[keys]\n[[models]]", "9: `keys` is a list of tables: write [[keys]], or"),
        ("[[models]]", "[[gateway]]\n[[models]]", "9: `gateway` is a table: write [gateway]"),
        ("  { provider = ", "  7, { provider = ", "13: [models[0]] fallback[0] is a table: write"),
        ('"w"', '"w"\ngateways = "x"', "19: [workers[0]] gateways is a list: write gateways = ["),
        (
            '"w"',
            '"w"\ngateways = [\n"x",\n7]',
            "21: [workers[0]] gateways[1]: expected a text in quotes",
        ),
        (
            '"w"',
            '"w"\nengine = "zzz"',
            '19: [workers[0]] engine cannot be "zzz"; Known: "native", "syn',
        ),
        (
            '"w"',
            '"w"\nengine = "nativ"',
            '19: [workers[0]] engine cannot be "nativ"; did you mean "n',
        ),
        ('"w"', '"w"\nblock_size = 33', "19: [workers[0]] block_size cannot be 33; "),
        ('"w"', '"w"\nblock_size = true', "19: [workers[0]] block_size cannot be true; Known: 16"),
        ('"m"\n', '"m"\ncloud = "no"\n', '11: [models[0]] cloud cannot be "no"; Known: "allow"'),
        ("[[models]]", "[gateway]\nworker_bind = 7\n[[models]]", "10: [gateway] worker_bind: exp"),
        ('"w"', '"w"\n"a\\nb" = 1', '19: unknown key `"a\\nb"` in'),
        ('"w"', '"w"\nscript = "s"', "17: [workers[0]]: engine = "),
    ],
)
def test_a_mistake_is_named_with_its_line(old: str, new: str, said: str) -> None:
    """A mistake is named with its own line, however often the same words occur elsewhere; the name
    of the provider that it is in; how to write what was meant.
    """
    assert parse_config(TWO, "herma.toml")
    assert old in TWO
    with pytest.raises(ConfigError) as caught:
        parse_config(TWO.replace(old, new, 1), "herma.toml")
    text = str(caught.value)
    assert text.startswith(f"herma.toml:{said}")
    assert "\n" not in text


def test_the_byte_order_mark_of_an_editor_is_no_key(tmp_path: Path) -> None:
    """Notepad and PowerShell write the mark before the first line, and editors do not show it."""
    path = tmp_path / "herma.toml"
    path.write_bytes(b"\xef\xbb\xbf[gateway]\r\nport = 9000\r\n")
    assert load_config(path).gateway.port == 9000
    path.write_bytes(b"\xef\xbb\xbf[gateway]\r\nprot = 9000\r\n")
    with pytest.raises(ConfigError, match=r":2: unknown key `prot`"):
        load_config(path)
    assert read_text(path).startswith("[gateway]")


def test_one_list_for_another_is_told_how_it_is_written() -> None:
    """`fallback` is one, though it often holds one table."""
    text = '[[models]]\nname = "m"\nfallback = { provider = "p", model = "f" }'
    with pytest.raises(ConfigError, match=r"^x:3: .*\[\[models.fallback\]\], or fallback = \[\{ "):
        parse_config(text, "x")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("builtin:herma-big", "does not exist: the built-in ones are builtin:herma-tiny"),
        ("builtin:", "does not exist: the built-in ones are builtin:herma-tiny"),
        ("buildin:herma-tiny", "neither a directory, nor a hub id .* nor built in: builtin:herma"),
        ("", "neither a directory"),
    ],
)
def test_a_model_that_no_machine_can_have_is_refused(model: str, says: str) -> None:
    """Wherever the worker is to run."""
    text = TWO.replace('model = "/models/m"', f'model = "{model}"')
    with pytest.raises(ConfigError, match=f"^x:19: worker `w`: model .*{says}"):
        parse_config(text, "x")


@pytest.mark.parametrize("drafter", ["builtin:herma-tiny", "builtin:herma-tiny/eagle", "hf:a/b"])
def test_a_drafter_that_no_machine_can_have_is_refused(drafter: str) -> None:
    """A drafter that cannot exist is refused; the line names all that are built in."""
    speculation = f'speculation = {{ drafter = "{drafter}" }}'
    text = TWO.replace('model = "/models/m"', f'model = "/models/m"\n{speculation}')
    says = f"^x:20: worker `w`: drafter '{drafter}' is .* one of .*builtin:herma-tiny/mtp"
    with pytest.raises(ConfigError, match=says):
        parse_config(text, "x")


@pytest.mark.parametrize(
    "model", ["builtin:herma-tiny", "a/b", "a", "./a:b", "/a:b", "~/a:b", "a b"]
)
def test_a_model_that_a_machine_may_have_is_taken(model: str) -> None:
    """A model's directory is taken as it is, because it may exist on the worker's host."""
    text = TWO.replace('model = "/models/m"', f'model = "{model}"')
    assert parse_config(text, "x").workers[0].model == model


def test_a_profile_is_known_though_no_worker_takes_it() -> None:
    """Workers of other hosts have files of their own."""
    with pytest.raises(ConfigError, match=r"^x:3: unknown profile `fast`"):
        parse_config('[[models]]\nname = "m"\nprofile = "fast"', "x")


@pytest.mark.parametrize(("begin", "inner", "end"), [("[", "", "]"), ("{a=", "1", "}")])
def test_no_depth_is_too_much(begin: str, inner: str, end: str) -> None:
    """Deeply nested values are refused as others are, or as too deep."""
    for depth in (1, *range(200, 500), 10_000):
        with pytest.raises(ConfigError, match=r"^x:"):
            parse_config(f"[gateway]\nport = {begin * depth}{inner}{end * depth}", "x")


def test_a_key_like_no_other_brings_no_guess() -> None:
    """A suggestion is made only where one is near."""
    with pytest.raises(ConfigError) as caught:
        parse_config("[gateway]\nxylophone = 1", "herma.toml")
    assert "did you mean" not in str(caught.value)
    assert "; known: address_rate_limit, allowed_origins" in str(caught.value)


def test_a_public_bind_needs_keys() -> None:
    """A gateway that the network can reach is refused while anybody may use it."""
    with pytest.raises(ConfigError, match=r"public.*herma keys new"):
        parse_config('[gateway]\nhost = "0.0.0.0"', "herma.toml")
    key = GOOD[GOOD.index("[[keys]]") :]
    assert parse_config(f'[gateway]\nhost = "0.0.0.0"\n{key}', "herma.toml").keys


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path that cannot be read is an error with the path, not an empty configuration."""
    with pytest.raises(ConfigError, match=r"nowhere\.toml.*herma init"):
        load_config(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match=r"name the file in it"):
        load_config(tmp_path)


def test_the_builtin_configuration_is_valid() -> None:
    """Without a file one worker serves the built-in model on loopback."""
    config = builtin_config()
    assert config.gateway.host == "127.0.0.1"
    assert config.workers[0].serves == config.models[0].name == "herma-tiny"


@given(st.text(max_size=200))
def test_any_text_is_a_configuration_or_an_error(text: str) -> None:
    """No text makes the loader fail in another way than with `ConfigError`."""
    try:
        parse_config(text, "x")
    except ConfigError as error:
        assert str(error).startswith("x")
        assert len(str(error).splitlines()) == 1


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(
    st.sampled_from(["gateway", "models", "workers", "providers", "keys"]),
    st.sampled_from(["port", "name", "serves", "fallback", "cloud", "hash", "profile"]),
    _VALUES,
    st.booleans(),
)
def test_any_value_at_any_key_is_taken_or_refused(
    table: str, key: str, value: object, array: bool
) -> None:
    """Wrong types in any place are refused as `ConfigError`."""
    rendered = repr(value).lower().replace("'", '"').replace("none", "{}")
    try:
        parse_config(
            f"{'[[' if array else '['}{table}{']]' if array else ']'}\n{key} = {rendered}", "x"
        )
    except ConfigError as error:
        assert str(error).startswith("x")
        assert len(str(error).splitlines()) == 1


def test_a_file_that_is_swapped_by_symlink_is_read_anew(tmp_path: Path) -> None:
    """A file that is swapped by symlink, as a ConfigMap of Kubernetes is, is read anew: `..data` is
    replaced, the file's own link stays.
    """
    for number in (1, 2):
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        (folder / "herma.toml").write_text(f"[gateway]\nport = 900{number}\n")
    data, path = tmp_path / "..data", tmp_path / "herma.toml"
    data.symlink_to("..1")
    path.symlink_to("..data/herma.toml")
    assert load_config(path).gateway.port == 9001
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(data)
    assert load_config(path).gateway.port == 9002
