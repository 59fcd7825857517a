"""Ends of answers that vLLM has for itself."""

import json

from tests.workers.external.test_engine_apis import answer_to, api_of, sampling


def test_an_answer_that_repeats_itself_is_whole() -> None:
    """An answer that repeats itself is whole, as one at its limit: elsewhere it would repeat the
    same, and no engine has failed.
    """
    api, answer = api_of("vllm"), answer_to(sampling(max_tokens=9))
    reader = api.reader(answer.next_job())
    for ids, finish in ([21, 22], None), ([21, 22], "repetition"):
        choice = {"index": 0, "text": "x", "token_ids": ids, "finish_reason": finish}
        event = reader.read(json.dumps({"choices": [choice]}).encode())
        assert event is not None
        answer.take(event)
    end = reader.read(b"[DONE]")
    assert end is not None
    answer.take(end)
    assert answer.is_over
    assert (answer.reason, answer.num_outputs) == ("length", 4)
