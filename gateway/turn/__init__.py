"""One request from question to usage: preparation, sequence runs, retries, providers.

Owns the tasks of a request and their end. Must not know HTTP or sockets.
"""

from gateway.turn.caller import Caller
from gateway.turn.conversation_tracker import ConversationTracker
from gateway.turn.encoding import Encoding
from gateway.turn.health_probes import HealthProbes
from gateway.turn.model_prompts import read_model_prompts
from gateway.turn.model_texts import KnownText, known_text
from gateway.turn.open_turns import OpenTurns
from gateway.turn.pass_through import PathRequest, Respond, pass_through
from gateway.turn.preview import preview_route
from gateway.turn.prompt_room import PromptRoom, prompt_room
from gateway.turn.provider_health import ProviderHealth
from gateway.turn.retry_policy import RetryBudget
from gateway.turn.services import Services
from gateway.turn.turn import answer_request
