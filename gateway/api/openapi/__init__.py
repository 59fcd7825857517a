"""What the HTTP API is, for programs: its description and the types of its answers.

Must not know how anything is served.
"""

from gateway.api.openapi.document import openapi_document

__all__ = ["openapi_document"]
