#!/usr/bin/env bash
# @huggingface/jinja 0.5.11 (npm) beside jinja2 3.1.6 (PyPI), which transformers renders with.
#
# Expected: the same prompt from the same template: the package is made for "parsing and rendering ML chat
# templates" (its README), and Transformers.js renders with it. In templates `strip` is Python's `str.strip`.
# Seen: `strip`, `lstrip` and `rstrip` ignore their argument and take all white space. Qwen3's templates
# write a thought as `reasoning_content.strip('\n')` and an answer as `content.lstrip('\n')`, so one that
# begins with an indented line has other tokens in a browser than on the server, and cached prefixes miss.
# Other characters than white space are not stripped. The package for Swift did the same until July 2026
# (huggingface/swift-jinja, issue 64).
#
# Output seen on 2026-11-29:
#   '\n  - one\n'.strip('\n'): jinja2 '  - one', huggingface '- one'
#   '\n  - one\n'.lstrip('\n'): jinja2 '  - one\n', huggingface '- one\n'
#   '"quoted"'.strip('"'): jinja2 'quoted', huggingface '"quoted"'
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check jinja2==3.1.6
npm install --silent --no-audit --no-fund --prefix "$work" @huggingface/jinja@0.5.11
cat > "$work/render.mjs" <<'JS'
import { Template } from "@huggingface/jinja";

const cases = JSON.parse(process.argv[2]);
console.log(JSON.stringify(cases.map(([text, call]) => new Template(`{{ text${call} }}`).render({ text }))));
JS
"$work/venv/bin/python" - "$work" <<'PY' | tee "$work/out"
import json, subprocess, sys
from jinja2.sandbox import ImmutableSandboxedEnvironment

environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
cases = [("\n  - one\n", r".strip('\n')"), ("\n  - one\n", r".lstrip('\n')"), ('"quoted"', """.strip('"')""")]
command = ["node", f"{sys.argv[1]}/render.mjs", json.dumps(cases)]
peer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
for (text, call), other in zip(cases, peer):
    ours = environment.from_string("{{ text" + call + " }}").render(text=text)
    print(f"{text!r}{call}: jinja2 {ours!r}, huggingface {other!r}")
PY
diff "$work/out" - <<'OUT'
'\n  - one\n'.strip('\n'): jinja2 '  - one', huggingface '- one'
'\n  - one\n'.lstrip('\n'): jinja2 '  - one\n', huggingface '- one\n'
'"quoted"'.strip('"'): jinja2 'quoted', huggingface '"quoted"'
OUT
