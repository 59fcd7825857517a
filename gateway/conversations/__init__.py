"""Conversations of agents: which requests belong together, what they cost, and what goes wrong.

Owns recognition, the counts of each conversation, loops, and broken prefixes. Pure: time is an
argument, and what is decided is carried out by `gateway.turn`.
"""

from gateway.conversations.book import MAX_CONVERSATIONS, ConversationBook, ConversationVisit
from gateway.conversations.conversation import (
    ConversationList,
    ConversationRow,
    KnownConversation,
    SentPrompt,
    TurnEnd,
)
from gateway.conversations.hints import hint_of
from gateway.conversations.loops import Loop, LoopFinder
from gateway.conversations.names import ClientNames, named_by
from gateway.conversations.prefix_doctor import (
    PrefixDoctor,
    PrefixFinding,
    PrefixList,
    PrefixRow,
    tools_of,
)
from gateway.conversations.repairs import Repair
from gateway.conversations.returns import ReturnModel
