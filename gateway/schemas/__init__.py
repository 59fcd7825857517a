"""JSON schemas: what of one can be enforced token by token, and where its references lead.

Owns the forms in which engines get schemas and patterns, and what is left out of them. Must not
know requests, tools or engines' grammars.
"""

from gateway.schemas.enforceable import CLOSED, LeftOut, enforceable
from gateway.schemas.formats import FORMAT_PATTERNS
from gateway.schemas.json_types import SYNONYMS, named_types, type_of, types_of_both
from gateway.schemas.references import resolved
from gateway.schemas.written_size import SchemaTooLarge
