"""Conversations of agents: which requests belong together, what they cost, and what goes wrong.

Owns recognition, the counts of each conversation, loops, and broken prefixes. Pure: time is an
argument, and what is decided is carried out by `gateway.turn`.
"""

from gateway.conversations.book import ConversationBook, Visit
from gateway.conversations.conversation import (
    Conversation,
    ConversationList,
    ConversationRow,
    row_of,
)
from gateway.conversations.hints import hint_of
from gateway.conversations.loops import Loop, LoopFinder
from gateway.conversations.names import Named, named_by
from gateway.conversations.prefix_doctor import (
    Finding,
    PrefixDoctor,
    PrefixList,
    PrefixRow,
    Prompt,
    tools_of,
)
from gateway.conversations.repairs import Repair
from gateway.conversations.returns import Expected, Hint, ReturnModel

__all__ = [
    "Conversation",
    "ConversationBook",
    "ConversationList",
    "ConversationRow",
    "Expected",
    "Finding",
    "Hint",
    "Loop",
    "LoopFinder",
    "Named",
    "PrefixDoctor",
    "PrefixList",
    "PrefixRow",
    "Prompt",
    "Repair",
    "ReturnModel",
    "Visit",
    "hint_of",
    "named_by",
    "row_of",
    "tools_of",
]
