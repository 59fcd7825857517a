"""The words of a made-up answer."""

from pathlib import Path

from tokenizers import Tokenizer

from tests.fakes.worker_process import write_model_dir
from workers.model_dir import builtin_dir
from workers.replay.vocabulary import read_vocabulary


def test_an_answer_has_as_many_words_as_tokens() -> None:
    """Its text alone tells a client how many tokens came, and which."""
    model_dir = builtin_dir("builtin:herma-tiny")
    vocabulary = read_vocabulary(model_dir)
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids = [vocabulary.at(7, index) for index in range(500)]
    text = tokenizer.decode(ids)
    assert len(text.split()) == 500
    assert text.split() == [tokenizer.decode([token_id]).strip() for token_id in ids]
    assert ids != [vocabulary.at(8, index) for index in range(500)]


def test_a_vocabulary_without_words_is_used_as_it_is(tmp_path: Path) -> None:
    """All ordinary tokens, but no added one and no end of an answer."""
    assert list(read_vocabulary(write_model_dir(tmp_path)).ids) == list(range(256))
