"""External engines: their HTTP APIs, their answers in Herma's terms, and the contents of their
caches.
"""

from workers.external.answer import Answer, Piece
from workers.external.approximate import ApproximateBlocks, Expectation
from workers.external.engine_api import (
    EngineApi,
    EngineError,
    EngineLimits,
    EngineQuestions,
    EngineTrouble,
    Event,
    EventSplitter,
    HttpRequest,
    Job,
    Reader,
)
from workers.external.grammar_fields import is_lenient
from workers.external.held_blocks import Copies, HeldBlocks, model_roots
from workers.external.llama_cpp_api import LlamaCppApi
from workers.external.openai_api import OpenAiApi, Proof
from workers.external.sglang_api import SglangApi
from workers.external.start_lines import phase_of
from workers.external.vllm_api import VllmApi
from workers.external.vllm_feed import Heard, VllmFeed

__all__ = [
    "Answer",
    "ApproximateBlocks",
    "Copies",
    "EngineApi",
    "EngineError",
    "EngineLimits",
    "EngineQuestions",
    "EngineTrouble",
    "Event",
    "EventSplitter",
    "Expectation",
    "Heard",
    "HeldBlocks",
    "HttpRequest",
    "Job",
    "LlamaCppApi",
    "OpenAiApi",
    "Piece",
    "Proof",
    "Reader",
    "SglangApi",
    "VllmApi",
    "VllmFeed",
    "is_lenient",
    "model_roots",
    "phase_of",
]
