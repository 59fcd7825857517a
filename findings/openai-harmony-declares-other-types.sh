#!/usr/bin/env bash
# openai-harmony 0.0.8 (PyPI), `DeveloperContent.with_function_tools`, with schemas of pydantic 2.14.4, judged by
# typescript 5.9.3 (npm); the vocabulary is that of js-tiktoken 1.0.21 (npm).
#
# Expected: gpt-oss reads its tools as TypeScript that harmony writes, so a type there takes what the schema takes.
# Seen: the items of an array stand before `[]` without brackets. `list[Literal["read", "write"]]` becomes
# `"read" | "write"[]`, which is the string "read", or an array of "write" alone: the compiler refuses every
# array with "read" in it and takes the bare string, which the schema refuses. Of a description in two lines, as a
# docstring has them, the second one stands outside of the comment, as a parameter of its own.
#
# Output seen on 2026-11-29:
#   modes: "read" | "write"[],
#   ["read"]: schema True, typescript False
#   "read": schema False, typescript True
#   // Where to look.
#   recursive
#   path: string,
#   parameters by typescript: modes, recursive, path
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check openai-harmony==0.0.8 pydantic==2.14.4 jsonschema==4.26.0
npm install --silent --no-audit --no-fund --prefix "$work" js-tiktoken@1.0.21 typescript@5.9.3
cd "$work"
cat > vocabulary.cjs <<'JS'
// The file that harmony would download, whose hash it checks.
const ranks = require("js-tiktoken/ranks/o200k_base");
const lines = (ranks.default ?? ranks).bpe_ranks.split("\n").filter(Boolean).flatMap((line) => {
  const [, first, ...tokens] = line.split(" ");
  return tokens.map((token, at) => `${token} ${Number(first) + at}\n`);
});
require("fs").writeFileSync("o200k_base.tiktoken", lines.join(""));
JS
node vocabulary.cjs
cat > judge.cjs <<'JS'
const ts = require("typescript");
const [, , source] = process.argv;
const options = { strict: true, noEmit: true, noLib: false, types: [] };
require("fs").writeFileSync("judged.ts", source);
const program = ts.createProgram(["judged.ts"], options);
const file = program.getSourceFile("judged.ts");
const type = program.getTypeChecker().getTypeAtLocation(file.statements[0]);
const errors = program.getSemanticDiagnostics(file).filter((one) => one.code === 2322);
console.log(JSON.stringify({ taken: errors.length === 0, names: type.getProperties().map((one) => one.name) }));
JS
TIKTOKEN_ENCODINGS_BASE=$work venv/bin/python - <<'PY' | tee out
import json, re, subprocess
from typing import Literal
import jsonschema
from pydantic import BaseModel, Field
from openai_harmony import (Conversation, DeveloperContent, HarmonyEncodingName, Message, Role,
                            ToolDescription, load_harmony_encoding)

class Look(BaseModel):
    modes: list[Literal["read", "write"]]
    path: str = Field(description="Where to look.\nrecursive")

schema = Look.model_json_schema()
encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
tools = [ToolDescription.new("look", "Look.", parameters=schema)]
content = DeveloperContent.new().with_function_tools(tools)
message = Message.from_role_and_content(Role.DEVELOPER, content)
prompt = encoding.decode(encoding.render_conversation(Conversation.from_messages([message])))
declared = re.search(r"type look = \(_: (\{.*?\n\})\) => any", prompt, re.S)[1]

def judged(declaration, rest=""):
    command = ["node", "judge.cjs", f"type T = {declaration};\n{rest}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

lines = declared.splitlines()[1:-1]
print(next(line for line in lines if line.startswith("modes")))
modes = schema["properties"]["modes"]
for value in (["read"], "read"):
    text = json.dumps(value)
    fits = jsonschema.Draft202012Validator(modes).is_valid(value)
    print(f"{text}: schema {fits}, typescript", judged(declared, f'const value: T["modes"] = {text};')["taken"])
print("\n".join(lines[lines.index("// Where to look."):]))
print("parameters by typescript:", ", ".join(judged(declared)["names"]))
PY
diff out - <<'OUT'
modes: "read" | "write"[],
["read"]: schema True, typescript False
"read": schema False, typescript True
// Where to look.
recursive
path: string,
parameters by typescript: modes, recursive, path
OUT
