"""Stored responses and conversations of the Responses API, and responses in the background.

Owns what happens to an answer beside its client: the record that is stored, the task that makes it
while no client waits, the history of a request. Must not know HTTP, nor SQL.
"""

from gateway.responses.background import Running
from gateway.responses.record import Origin, Record
from gateway.responses.stored import StoredResponses, no_item

__all__ = ["Origin", "Record", "Running", "StoredResponses", "no_item"]
