"""From token ids to events: detokenising, stop strings, reasoning, tool calls.

Owns what a sequence's tokens mean for its client. Must not know workers, HTTP or how a turn runs.
Pure.
"""

from gateway.output.answer_format import AUTO, NONE, AnswerFormat, answer_format
from gateway.output.detokenizer import (
    BYTE_OF,
    ByteDetokenizer,
    ByteTable,
    Detokenizer,
    StreamDetokenizer,
    StreamTokenBytes,
    TokenBytes,
)
from gateway.output.reasoning import ReasoningFormat
from gateway.output.sequence_output import (
    EventSink,
    OutputPipeline,
    Reason,
    SequenceOutput,
    spelled_logprob,
)
from gateway.output.stop_strings import NO_STOPS, StopMatcher
