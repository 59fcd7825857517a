"""Claude Code: the variables in `~/.claude/settings.json`, the Messages API.

Claude Code assumes a window of a million tokens for a model that it does not know, and asks for
several models by names of its own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from herma.clients.merging import json_text, merge_json, merged
from herma.clients.served import Served, key_of
from herma.clients.setup import MAX_ANSWER_TOKENS, NO_KEY, Setup, answer_share

API_TIMEOUT_MS: Final = 1_200_000
"""Milliseconds for a whole answer. Claude Code's default of 600,000 is too short for a long
prompt on a slow card.
"""

_MODEL_NAMES: Final = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
)


def setup(served: Served, environ: Mapping[str, str], home: Path) -> Setup:
    """Claude Code at that gateway."""
    patch = _patch(served)
    variables = _variables(served)
    variables["ANTHROPIC_AUTH_TOKEN"] = key_of(served.key_env) if served.key_env else NO_KEY
    settings = json.dumps({"env": _variables(served)})
    folder = Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude")
    return Setup(
        program="claude",
        path=folder / "settings.json",
        text=json_text(merged({}, patch)),
        merge=lambda text: merge_json(text, patch),
        # Settings on the command line take precedence over the user's file. A key is never a word
        # of the command line.
        argv=("claude", "--settings", settings),
        environ=variables,
        install="npm install -g @anthropic-ai/claude-code",
    )


def _patch(served: Served) -> dict[str, Any]:
    """What is merged into the settings file. A key stays in its variable, from which a helper
    prints it.
    """
    variables: dict[str, str | None] = {**_variables(served)}
    if served.key_env is None:
        return {"env": {**variables, "ANTHROPIC_AUTH_TOKEN": NO_KEY}}
    # A token in the file would be sent in place of the helper's.
    variables["ANTHROPIC_AUTH_TOKEN"] = None
    return {"apiKeyHelper": f"printenv {served.key_env}", "env": variables}


def _variables(served: Served) -> dict[str, str]:
    variables = {"ANTHROPIC_BASE_URL": served.root_url}
    variables |= dict.fromkeys(_MODEL_NAMES, served.default.id)
    if (window := served.default.max_model_len) is not None:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(window)
        share = min(answer_share(window), MAX_ANSWER_TOKENS)
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(share)
    variables["API_TIMEOUT_MS"] = str(API_TIMEOUT_MS)
    return variables
