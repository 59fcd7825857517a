"""Stored responses and conversations of the Responses API, and responses in the background.

Owns the record of an answer that is stored, the task that computes an answer while no client waits,
and the history of a request. Must not know HTTP, nor SQL.
"""

from gateway.responses.background import BackgroundRun
from gateway.responses.record import ResponseOrigin, ResponseRecord
from gateway.responses.stored import StoredResponses, no_item, stored_responses
