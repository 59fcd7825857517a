"""Chat templates in the published formats of the families that run, and tokenizers with their
control tokens.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import AddedToken, Tokenizer

from tests.fakes.text_files import make_text_files


class Family(NamedTuple):
    """`ends` are the tokens that end an answer, `parser` is the format of its calls. With
    `takes_text` the template takes the arguments of calls as JSON text.
    """

    file_name: str
    tokens: tuple[str, ...]
    ends: tuple[str, ...]
    parser: str
    takes_text: bool = False

    @property
    def template(self) -> str:
        """The source."""
        folder = Path(__file__).with_name("templates")
        return (folder / f"{self.file_name}.jinja").read_text(encoding="utf-8")


FAMILY_TEMPLATES: Final = {
    "llama3": Family(
        "llama",
        (
            "<|begin_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
        ),
        ("<|eot_id|>", "<|eom_id|>"),
        "llama3_json",
    ),
    "mistral": Family(
        "mistral",
        ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[AVAILABLE_TOOLS]"),
        ("</s>",),
        "mistral",
    ),
    "gemma3": Family(
        "gemma", ("<bos>", "<start_of_turn>", "<end_of_turn>"), ("<end_of_turn>",), "hermes"
    ),
    "function_gemma": Family(
        "function_gemma",
        (
            "<bos>",
            "<start_of_turn>",
            "<end_of_turn>",
            "<start_function_response>",
            "<start_function_call>",
            "<end_function_call>",
            "<escape>",
        ),
        ("<end_of_turn>", "<start_function_response>"),
        "function_gemma",
    ),
    "phi4_mini": Family(
        "phi",
        (
            "<|endoftext|>",
            "<|system|>",
            "<|user|>",
            "<|assistant|>",
            "<|end|>",
            "<|tool|>",
            "<|/tool|>",
            "<|tool_call|>",
            "<|/tool_call|>",
            "<|tool_response|>",
        ),
        ("<|end|>", "<|endoftext|>"),
        "phi4_mini",
    ),
    "qwen3_5": Family(
        "qwen3_5",
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        ("<|im_end|>", "<|endoftext|>"),
        "qwen3_coder",
    ),
    "qwen3_moe": Family(
        "qwen3_moe",
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        ("<|im_end|>", "<|endoftext|>"),
        "hermes",
    ),
    "gpt_oss": Family(
        "gpt_oss",
        (
            "<|startoftext|>",
            "<|start|>",
            "<|end|>",
            "<|message|>",
            "<|channel|>",
            "<|constrain|>",
            "<|call|>",
            "<|return|>",
        ),
        ("<|return|>", "<|call|>"),
        "harmony",
    ),
    "gemma4": Family(
        "gemma4",
        (
            "<bos>",
            "<|turn>",
            "<turn|>",
            "<|think|>",
            "<|channel>",
            "<channel|>",
            "<|tool>",
            "<tool|>",
            "<|tool_call>",
            "<tool_call|>",
            "<|tool_response>",
            "<tool_response|>",
            '<|"|>',
        ),
        ("<turn|>", "<|tool_response>"),
        "gemma4",
    ),
    "glm4_moe_lite": Family(
        "glm4_moe_lite",
        (
            "<|endoftext|>",
            "[gMASK]",
            "<sop>",
            "<|system|>",
            "<|user|>",
            "<|assistant|>",
            "<|observation|>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ),
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
        "glm",
    ),
    "deepseek_v3": Family(
        "deepseek_v3",
        (
            "<｜begin▁of▁sentence｜>",
            "<｜end▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜>",
        ),
        ("<｜end▁of▁sentence｜>",),
        "deepseek_v3",
        takes_text=True,
    ),
    "phi4_reasoning": Family(
        "phi_reasoning", ("<|im_start|>", "<|im_sep|>", "<|im_end|>"), ("<|im_end|>",), "hermes"
    ),
}
"""That of Qwen3 and before is in `text_files.py`."""


def family_files(name: str) -> dict[str, bytes]:
    """The files that a worker sends."""
    family = FAMILY_TEMPLATES[name]
    files = make_text_files(template=family.template)
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in family.tokens])
    config: dict[str, Any] = json.loads(files["tokenizer_config.json"])
    config |= {"bos_token": family.tokens[0], "eos_token": family.ends[0]}
    ends = [tokenizer.token_to_id(token) for token in family.ends]
    return files | {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "generation_config.json": json.dumps({"eos_token_id": ends}).encode(),
    }
