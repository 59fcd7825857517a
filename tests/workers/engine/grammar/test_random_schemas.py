"""What a random model writes under a schema is valid by an independent validator."""

import json
import os
import random

import jsonschema
from tokenizers import Tokenizer

from benchmarks.drive import Drive
from gateway.api import schema_source
from protocol.messages import Grammar
from protocol.sampling import SamplingParams
from tests.fakes.random_schemas import random_schema
from workers.engine.grammar.compiler import LlGuidanceCompiler
from workers.engine.runner import ModelRunner

NUM_SCHEMAS = int(os.environ.get("HERMA_SCHEMAS", "50"))
BATCH = 50
MAX_TOKENS = 600
LEAST_ENDED = 0.8


def test_answers_are_valid(
    runner: ModelRunner, compiler: LlGuidanceCompiler, tokenizer: Tokenizer
) -> None:
    """Answers are valid at temperature 1; what the limit cut is reported as such, and is no
    claim.
    """
    rng = random.Random(7)
    schemas = [random_schema(rng) for _ in range(NUM_SCHEMAS)]
    drive = Drive(runner, compiler=compiler)
    numbers = []
    sampling = SamplingParams(max_tokens=MAX_TOKENS)
    for begin in range(0, NUM_SCHEMAS, BATCH):
        for at, schema in enumerate(schemas[begin : begin + BATCH], begin):
            text = schema_source(schema, "schema", is_strict=True).text
            grammar = Grammar("json_schema", text)
            numbers.append(drive.submit([at % 4000, 17, 9], sampling, seed=at, grammar=grammar))
        drive.finish()
    num_ended = 0
    for number, schema in zip(numbers, schemas, strict=True):
        answer = drive.answers[number]
        assert answer.finished is not None
        assert answer.finished.reason in ("stop", "length"), answer.finished
        if answer.finished.reason == "length":
            assert len(answer.outputs) == MAX_TOKENS
            continue
        num_ended += 1
        written = json.loads(tokenizer.decode(answer.outputs, skip_special_tokens=False))
        jsonschema.validate(written, schema, format_checker=jsonschema.FormatChecker())
    assert num_ended >= LEAST_ENDED * NUM_SCHEMAS, f"{num_ended} of {NUM_SCHEMAS}"
    print(f"{num_ended} of {NUM_SCHEMAS} ended by themselves; all are valid")
