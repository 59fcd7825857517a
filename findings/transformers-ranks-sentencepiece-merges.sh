#!/usr/bin/env bash
# transformers 5.24.0 with sentencepiece 0.2.3 (PyPI), and the vocabulary of Mistral 7B from
# mistral-common 1.13.1.
#
# Expected: `AutoTokenizer` over a checkpoint that has `tokenizer.model` and no `tokenizer.json` encodes as
# SentencePiece does with the same file: the model was trained on those tokens.
# Seen: version 5 makes the merges itself and ranks them by id. The pieces of several spaces have low ids
# and the lowest scores, so SentencePiece merges them last and transformers first: other tokens for any text
# with two spaces in a row, which is most code. A leading space is lost too: the prefix is not put before
# a text that begins with one. Nothing is said; text without both is encoded alike.
#
# Output seen on 2026-11-29:
#   'a b': the same
#   'a  b': sentencepiece ['▁a', '▁', '▁b'], transformers ['▁a', '▁▁', 'b']
#   ':\n    return': sentencepiece ['▁:', '<0x0A>', '▁▁▁', '▁return'], transformers ['▁:', '<0x0A>', '▁▁▁▁', 'return']
#   ' hello': sentencepiece ['▁', '▁hell', 'o'], transformers ['▁hell', 'o']
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
  transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.3 mistral-common==1.13.1 protobuf==7.36.2
mkdir "$work/model"
"$work/venv/bin/python" -W ignore - "$work/model" 2>/dev/null <<'PY' | tee "$work/out"
import json, shutil, sys
from pathlib import Path

import mistral_common, sentencepiece
from transformers import AutoTokenizer

vocabulary = Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"
model = Path(sys.argv[1])
shutil.copy(vocabulary, model / "tokenizer.model")
(model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
theirs = AutoTokenizer.from_pretrained(model)
base = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
for text in ("a b", "a  b", ":\n    return", " hello"):
    pieces, tokens = base.encode(text, out_type=str), theirs.tokenize(text)
    if pieces == tokens:
        print(f"{text!r}: the same")
    else:
        print(f"{text!r}: sentencepiece {pieces}, transformers {tokens}")
PY
diff "$work/out" - <<'OUT'
'a b': the same
'a  b': sentencepiece ['▁a', '▁', '▁b'], transformers ['▁a', '▁▁', 'b']
':\n    return': sentencepiece ['▁:', '<0x0A>', '▁▁▁', '▁return'], transformers ['▁:', '<0x0A>', '▁▁▁▁', 'return']
' hello': sentencepiece ['▁', '▁hell', 'o'], transformers ['▁hell', 'o']
OUT
