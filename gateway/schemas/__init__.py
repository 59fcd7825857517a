"""JSON schemas: which parts can be enforced token by token, and where references lead. Owns the
forms in which engines get schemas and patterns, and which keywords are left out. Must not know
requests, tools or engines' grammars.
"""

from gateway.schemas.enforceable import CLOSED, LeftOut, enforceable
from gateway.schemas.formats import FORMAT_PATTERNS
from gateway.schemas.json_types import SYNONYMS, named_types, type_of, types_of_both
from gateway.schemas.references import resolved
from gateway.schemas.written_size import SchemaTooLarge
