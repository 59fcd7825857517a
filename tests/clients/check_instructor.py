"""instructor against a gateway: `python check_instructor.py URL KEY`; prints JSON.

It observes; `test_frameworks` judges.
"""

import json
import sys
from typing import Any

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field


class Person(BaseModel):
    """A person, and nothing else: an open schema lets a small model go on for ever."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def main(url: Any, key: Any) -> Any:
    client = OpenAI(base_url=url, api_key=key, max_retries=0)

    def structured(mode: Any, **options: Any) -> Any:
        wrapped = instructor.from_openai(client, mode=mode)
        return wrapped.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Ann is 40."}],
            response_model=Person,
            max_retries=0,
            **options,
        )

    wrapped = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    parts = wrapped.chat.completions.create_partial(
        model="tiny",
        messages=[{"role": "user", "content": "Ann is 40."}],
        response_model=Person,
        max_tokens=200,
    )
    *_, last = parts
    return {
        "structured": structured(instructor.Mode.JSON_SCHEMA, max_tokens=200).model_dump(),
        "by a tool": structured(instructor.Mode.TOOLS, max_tokens=200).model_dump(),
        "responses": structured(
            instructor.Mode.RESPONSES_TOOLS, max_output_tokens=200
        ).model_dump(),
        "streamed": last.model_dump(),
    }


print(json.dumps(main(*sys.argv[1:])))
