#!/usr/bin/env bash
# safetensors 0.8.0 with ml_dtypes 0.6.0 and numpy 2.3.5 (PyPI), `safetensors.numpy`.
#
# Expected: what `save` takes, `load` and `load_file` of the same module give back. For a type that it does
# not know `save` raises and lists those that it supports, bfloat16 and the 8-bit floats among them.
# Seen: `load` raises a bare `KeyError` for each of them, `load_file` reads bfloat16 and raises an
# `AttributeError` for 8 bits. A tool that quantizes with numpy writes a sound file, and fails at reading
# its own output back.
#
# Output seen on 2026-11-29:
#   float16: listed True, load float16, load_file float16
#   bfloat16: listed True, load KeyError 'BF16', load_file bfloat16
#   float8_e4m3fn: listed True, load KeyError 'F8_E4M3', load_file AttributeError
#   float8_e8m0fnu: listed True, load KeyError 'F8_E8M0', load_file AttributeError
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check safetensors==0.8.0 ml_dtypes==0.6.0 numpy==2.3.5
"$work/venv/bin/python" - "$work/file" <<'PY' | tee "$work/out"
import sys
import ml_dtypes
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save, save_file

def said(read):
    try:
        return read()["a"].dtype
    except KeyError as error:
        return f"KeyError {error}"
    except AttributeError:
        return "AttributeError"

try:
    save({"a": np.ones(2, ml_dtypes.int4)})
except SafetensorError as error:
    listed = str(error)
for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu"):
    tensors = {"a": np.ones(2, getattr(ml_dtypes, name, name))}
    save_file(tensors, sys.argv[1])
    print(f"{name}: listed {name in listed}, load {said(lambda: load(save(tensors)))}, "
          f"load_file {said(lambda: load_file(sys.argv[1]))}")
PY
diff "$work/out" - <<'OUT'
float16: listed True, load float16, load_file float16
bfloat16: listed True, load KeyError 'BF16', load_file bfloat16
float8_e4m3fn: listed True, load KeyError 'F8_E4M3', load_file AttributeError
float8_e8m0fnu: listed True, load KeyError 'F8_E8M0', load_file AttributeError
OUT
