#!/usr/bin/env bash
# gguf 0.19.0 (PyPI), `gguf.quants.quantize(..., MXFP4)`, beside ml_dtypes 0.6.0 and numpy 2.3.5.
#
# Expected: an element of MXFP4 is the nearest E2M1 number and a tie goes to the even one, as in IEEE 754's
# default rounding and in ml_dtypes' `float4_e2m1fn`. gguf names the OCP's specification of the format as
# its source.
# Seen: gguf takes the first of two candidates that are as near, which is the smaller one. Ties are rare
# among 32-bit weights and common among weights that were 8-bit floats: with three bits of mantissa, many
# are exactly between two E2M1 numbers. Such a checkpoint loses twice as much of its weights' magnitude by
# gguf's rounding, at the same squared error, so no comparison of errors shows it.
#
# Output seen on 2026-11-29:
#   ties [0.25 0.75 1.25 1.75 2.5  3.5  5.  ]
#   gguf [0.  0.5 1.  1.5 2.  3.  4. ]
#   ml_dtypes [0. 1. 1. 2. 2. 4. 4.]
#   weights of E4M3: 7.6% differ; mean magnitude gguf -5.5%, ml_dtypes -2.6%; squared errors equal: True
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check gguf==0.19.0 ml_dtypes==0.6.0 numpy==2.3.5
"$work/venv/bin/python" - <<'PY' | tee "$work/out"
import gguf, ml_dtypes
import numpy as np

def by_gguf(weights):
    kind = gguf.GGMLQuantizationType.MXFP4
    return gguf.quants.dequantize(gguf.quants.quantize(weights, kind), kind)

def by_ml_dtypes(weights):
    blocks = weights.reshape(-1, 32)
    scales = 2.0 ** (np.floor(np.log2(np.abs(blocks).max(axis=1, keepdims=True))) - 2)
    elements = np.clip(blocks / scales, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    return (elements.astype(np.float32) * scales).reshape(weights.shape)

ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
block = np.zeros((1, 32), np.float32)
block[0, :8] = *ties, 6  # so the scale is 1
print("ties", ties)
print("gguf", by_gguf(block)[0, :7])
print("ml_dtypes", by_ml_dtypes(block)[0, :7])
drawn = np.random.default_rng(0).normal(size=(64, 4096)).astype(np.float32)
weights = drawn.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
ours, peer = by_gguf(weights), by_ml_dtypes(weights)
lost = [100 * (np.abs(found).mean() / np.abs(weights).mean() - 1) for found in (ours, peer)]
errors = [((found - weights) ** 2).mean() for found in (ours, peer)]
print(f"weights of E4M3: {100 * (ours != peer).mean():.1f}% differ; mean magnitude gguf {lost[0]:.1f}%, "
      f"ml_dtypes {lost[1]:.1f}%; squared errors equal: {np.isclose(*errors)}")
PY
diff "$work/out" - <<'OUT'
ties [0.25 0.75 1.25 1.75 2.5  3.5  5.  ]
gguf [0.  0.5 1.  1.5 2.  3.  4. ]
ml_dtypes [0. 1. 1. 2. 2. 4. 4.]
weights of E4M3: 7.6% differ; mean magnitude gguf -5.5%, ml_dtypes -2.6%; squared errors equal: True
OUT
