"""The model card: what the model can and cannot do, and how it was made.

Owns its text. Must not know where its figures come from.
"""

from typing import Final

from training.evaluate import Evaluation
from training.settings import TrainingSettings

_TEXT: Final = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
tags: [herma, tiny, tool-use, reasoning]
---

# herma-tiny

A language model of {parameters:.1f} million parameters that ships with Herma, so that a fresh
installation answers without a download, and so that tests of conversations, tools and reasoning
have answers that are right or wrong. It was trained from nothing on text that Herma's own code
generates; nobody else's text or weights are in it. Licence: Apache-2.0.

## What it can do

Short conversations in simple English: greetings and who it is, sums and comparisons, repeating,
reversing, sorting and counting, answering from facts in the prompt or said some turns before,
reading a field out of JSON, choosing one of a few tools that it has never seen and filling in its
arguments, using a tool's result, and saying that it does not know. Before an answer that is not
trivial it thinks for a few lines, between `<think>` and `</think>`.

## What it cannot do

Anything else. It knows nothing about the world, writes no programs, and speaks no other language.
Asked for such things it is meant to say so in a sentence. Do not use it where an answer matters.

## Form

Qwen3 architecture: {layers} layers of width {hidden}, {heads} heads and {kv_heads} key heads of
{head_dim}, SwiGLU of {inner}, tied embedding of {vocabulary} entries, bfloat16. Byte-level BPE that
keeps digits single and words alike wherever they stand. ChatML; tools and calls in the style of
Hermes (`<tools>`, `<tool_call>`, `<tool_response>`). The template drops the thoughts of earlier
answers. The window is {window:,} tokens by its rotary embedding. Most conversations of the training
have a few hundred tokens and at most {row_length:,}; some, in the later part of it, have up to
{long_length:,}. Beyond that it will read, but not reliably find (positions that skip ahead have
shown it longer distances). Greedy decoding is what it was evaluated with, and the default.

## Training

`python -m training --out config/builtin/herma-tiny --seed {seed}` on {device}: {tokens:.0f}
million tokens ({unique:.0f} million different ones) in {steps:,} steps of {batch:,} tokens, in
{minutes:.1f} minutes, data, tokenizer and evaluation included. Each conversation is alone in its
attention. Muon for the matrices and AdamW for the rest, bfloat16 with float32 master weights; only
what the assistant says is learned. Final loss {loss:.4f} nats per trained token.

## Evaluation

Held-out cases with words, names and tools that the training never uses, greedy, the weights as
published, float32. The last two lines are prompts of about {long_tokens:,} tokens:

{table}

`python -m benchmarks.tiny_eval` asks more such cases through the HTTP API.
"""


def model_card(
    settings: TrainingSettings,
    evaluation: Evaluation,
    *,
    vocabulary: int,
    num_parameters: int,
    seed: int,
    device: str,
    last: dict[str, float],
    total_s: float,
) -> str:
    """The text of README.md; `last` is the last entry of the training's log."""
    shape = settings.shape
    return _TEXT.format(
        parameters=num_parameters / 1e6,
        layers=shape.num_layers,
        hidden=shape.hidden,
        heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        inner=shape.inner,
        vocabulary=vocabulary,
        window=shape.context_length,
        row_length=settings.row_length,
        long_length=settings.long_length,
        long_tokens=settings.long_case_tokens,
        seed=seed,
        device=device,
        tokens=last["tokens"] / 1e6,
        unique=last["unique_tokens"] / 1e6,
        steps=int(last["step"]),
        batch=settings.row_length * settings.rows_per_batch,
        minutes=total_s / 60,
        loss=last["loss"],
        table=evaluation.table(),
    )
