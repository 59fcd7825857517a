"""Secrets never reach a record."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.starts.withheld import allowed_variables, recorded_variables, recorded_words

SECRET = "hunter2-0123456789"


@pytest.mark.parametrize(
    "words",
    [
        ("--api-key", SECRET),
        (f"--api-key={SECRET}",),
        ("-e", f"HF_TOKEN={SECRET}"),
        ("--hf-token", SECRET, "--tp", "2"),
        ("--config", f'{{"api_key": "{SECRET}", "x": 1}}'),
        ("--header", f"Authorization: Bearer {SECRET}"),
        ("--header", f"X-Auth: {SECRET}"),
        ("-H", f"X-Custom: {SECRET}"),
        (f"X-Auth: {SECRET}",),
        ("-e", f"MYSQL_PWD={SECRET}"),
        (f"--env=MYSQL_PWD={SECRET}",),
        ("env", f"ANYTHING={SECRET}", "server"),
        ("--url", f"https://me:{SECRET}@host/x"),
    ],
)
def test_secrets_of_a_command_line_are_withheld(words: tuple[str, ...]) -> None:
    """Flags, pairs, JSON, headers and addresses."""
    assert SECRET not in str(recorded_words(words))


def test_other_words_stay() -> None:
    """Names with `tokens` and `tokenizer` hold no secret, and they are what drifts."""
    words = (
        "vllm", "serve", "--max-num-batched-tokens", "16384", "--tokenizer", "/m",
        "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}',
    )  # fmt: skip
    assert recorded_words(words) == words


def test_the_allow_list_of_variables() -> None:
    """Variables that are not on the allow list are not recorded at all."""
    environ = {
        "CUDA_VISIBLE_DEVICES": "0",
        "VLLM_API_KEY": SECRET,
        "HERMA_RUNTIME_DIR": "/run/x",
        "HERMA_LOG_FORMAT": "text",
        "HERMA_LOG_LEVEL": "info",
        "HOME": "/h",
        "LD_PRELOAD": "/x.so",
    }
    assert allowed_variables(environ) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "LD_PRELOAD": "/x.so",
        "VLLM_API_KEY": "(not recorded)",
    }


def test_of_a_launch_only_what_is_known_is_recorded() -> None:
    """Any other variable may hold a secret by a name that nobody foresaw."""
    environ = {"MYSQL_PWD": SECRET, "MY_DSN": SECRET, "NCCL_DEBUG": "INFO", "PATH": "/bin"}
    assert recorded_variables(environ) == {
        **dict.fromkeys(("MYSQL_PWD", "MY_DSN", "PATH"), "(not recorded)"),
        "NCCL_DEBUG": "INFO",
    }


@given(
    prefix=st.sampled_from(["", "MY_", "VLLM_", "x"]),
    name=st.sampled_from(["KEY", "TOKEN", "SECRET", "PASSWORD", "token", "Api_Key"]),
    suffix=st.sampled_from(["", "_FILE", "S", "_2"]),
)
def test_a_value_by_a_secret_name_is_never_kept(prefix: str, name: str, suffix: str) -> None:
    """Wherever the name holds the word."""
    assert SECRET not in str(recorded_variables({f"{prefix}{name}{suffix}": SECRET}))
