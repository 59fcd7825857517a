#!/usr/bin/env bash
# openai-harmony 0.0.8 (PyPI), `render_conversation_for_completion`, with which servers write prompts of gpt-oss; the
# vocabulary is that of js-tiktoken 1.0.21 (npm).
#
# Expected: thoughts in front of an answer are left out of later prompts, and those of a turn that still calls
# tools stay (OpenAI's guide to the format, "Handling reasoning output in subsequent sampling"). So the prompt
# behind a call goes on from the prompt before it, and the engine has it in its cache.
# Seen: while the last message of the assistant is a call, no thoughts are left out at all: those of every earlier
# turn come back at their old places. Behind an answer only those before the first answer of the conversation are
# left out. So the first call of each turn changes the prompt near its beginning: nothing behind that is in the
# cache, and thoughts that were dropped are computed again.
#
# Output seen on 2026-11-29:
#   question 1: 9 tokens with thoughts of []; 0 of 0 before are the same
#   behind call 1: 44 tokens with thoughts of [1]; 7 of 7 before are the same
#   question 2: 52 tokens with thoughts of []; 9 of 42 before are the same
#   behind call 2: 95 tokens with thoughts of [1, 2]; 9 of 50 before are the same
#   question 3: 103 tokens with thoughts of [2]; 9 of 93 before are the same
#   behind call 3: 146 tokens with thoughts of [1, 2, 3]; 9 of 101 before are the same
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check openai-harmony==0.0.8
npm install --silent --no-audit --no-fund --prefix "$work" js-tiktoken@1.0.21
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
TIKTOKEN_ENCODINGS_BASE=$work venv/bin/python - <<'PY' | tee out
import re
from openai_harmony import (Author, Conversation, HarmonyEncodingName, Message, Role,
                            load_harmony_encoding)

encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)

def says(text, channel):
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)

def calls():
    call = says("{}", "commentary").with_recipient("functions.look")
    author = Author.new(Role.TOOL, "functions.look")
    found = Message.from_author_and_content(author, "found").with_recipient("assistant")
    return [call.with_content_type("<|constrain|>json"), found.with_channel("commentary")]

def prompt(messages):
    ids = encoding.render_conversation_for_completion(Conversation.from_messages(messages), Role.ASSISTANT)
    return ids, sorted(map(int, re.findall(r"thought(\d)", encoding.decode(ids))))

before, messages = [], []

def show(place):
    global before
    ids, thoughts = prompt(messages)
    same = next((at for at, (a, b) in enumerate(zip(before, ids)) if a != b), len(before))
    print(f"{place}: {len(ids)} tokens with thoughts of {thoughts}; {same} of {len(before)} before are the same")
    before = ids[:-2]  # without the beginning of the answer

for turn in (1, 2, 3):
    messages.append(Message.from_role_and_content(Role.USER, f"question {turn}"))
    show(f"question {turn}")
    messages += [says(f"thought{turn}", "analysis"), *calls()]
    show(f"behind call {turn}")
    messages.append(says(f"answer {turn}", "final"))
PY
diff out - <<'OUT'
question 1: 9 tokens with thoughts of []; 0 of 0 before are the same
behind call 1: 44 tokens with thoughts of [1]; 7 of 7 before are the same
question 2: 52 tokens with thoughts of []; 9 of 42 before are the same
behind call 2: 95 tokens with thoughts of [1, 2]; 9 of 50 before are the same
question 3: 103 tokens with thoughts of [2]; 9 of 93 before are the same
behind call 3: 146 tokens with thoughts of [1, 2, 3]; 9 of 101 before are the same
OUT
