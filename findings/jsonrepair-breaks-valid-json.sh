#!/usr/bin/env bash
# jsonrepair 3.15.0 beside 3.14.0 (npm).
#
# Expected: a document that is valid JSON stays as it is, and so it does in 3.14.0. Agents send the arguments of every
# call through the package, because some are broken.
# Seen: since 3.14.1 the last text of an object with a `{` in it that none closes raises, and the last text of a list
# with such a `[` is split in two: it is taken for one whose end is missing. Code is full of such texts, as the first
# line of a function in an edit or a patch. One with another member behind it, or with a line break before the closing
# bracket, passes, so small tests do. Call `JSON.parse` first, and repair what it refuses.
#
# Output seen on 2026-11-30:
#   3.14.0 {"line":"main() {"}: the same
#   3.14.0 {"line":"main() {","number":1}: the same
#   3.14.0 ["cat","a["]: the same
#   3.15.0 {"line":"main() {"}: Unexpected character "{" at position 16
#   3.15.0 {"line":"main() {","number":1}: the same
#   3.15.0 ["cat","a["]: ["cat","a",[""]]
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" jsonrepair@3.15.0 before@npm:jsonrepair@3.14.0
cat > "$work/repair.mjs" <<'JS'
import * as before from "before";
import * as now from "jsonrepair";

const texts = ['{"line":"main() {"}', '{"line":"main() {","number":1}', '["cat","a["]'];
for (const [version, { jsonrepair }] of [["3.14.0", before], ["3.15.0", now]]) {
  for (const text of texts) {
    JSON.parse(text);
    let repaired;
    try {
      repaired = jsonrepair(text);
    } catch (error) {
      repaired = error.message;
    }
    console.log(`${version} ${text}: ${repaired === text ? "the same" : repaired}`);
  }
}
JS
node "$work/repair.mjs" | tee "$work/out"
diff "$work/out" - <<'OUT'
3.14.0 {"line":"main() {"}: the same
3.14.0 {"line":"main() {","number":1}: the same
3.14.0 ["cat","a["]: the same
3.15.0 {"line":"main() {"}: Unexpected character "{" at position 16
3.15.0 {"line":"main() {","number":1}: the same
3.15.0 ["cat","a["]: ["cat","a",[""]]
OUT
