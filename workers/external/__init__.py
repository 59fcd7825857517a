"""External engines: their HTTP APIs, their answers in Herma's terms, and the contents of their
caches.
"""

from workers.external.answer import AnswerPiece, ExternalAnswer
from workers.external.approximate import ApproximateBlocks, CacheExpectation
from workers.external.engine_api import (
    EngineApi,
    EngineError,
    EngineEventSplitter,
    EngineJob,
    EngineLimits,
    EngineQuestions,
    EngineTrouble,
    HttpRequest,
    SleepCalls,
)
from workers.external.grammar_fields import is_lenient
from workers.external.held_blocks import CopyReports, HeldBlocks, model_roots
from workers.external.llama_cpp_api import LlamaCppApi
from workers.external.openai_api import OpenAiApi, Proof
from workers.external.sglang_api import SglangApi
from workers.external.start_lines import phase_of
from workers.external.vllm_api import VllmApi
from workers.external.vllm_feed import Heard, VllmFeed
