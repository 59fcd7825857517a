"""A tiny random model that speaks: two layers whose 512 tokens are text, for whole servers whose
answers need not make sense. The built-in one takes twice as long to start, four times to answer.
"""

from pathlib import Path

from tests.fakes.text_files import make_text_files
from tests.fakes.tiny_models import write_tiny_model

VOCABULARY = 512


def write_text_model(folder: Path, *, num_positions: int = 1024) -> Path:
    """Write weights and text files; `num_positions` is its window. Returns the directory."""
    write_tiny_model(
        folder,
        vocab_size=VOCABULARY,
        std=0.25,
        eos_token_id=VOCABULARY - 1,
        max_position_embeddings=num_positions,
    )
    for name, content in make_text_files(VOCABULARY).items():
        (folder / name).write_bytes(content)
    return folder
