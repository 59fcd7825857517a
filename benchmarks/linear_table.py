"""Writes data from a sweep: `python -m benchmarks.linear_table FILE...` writes the measured
configurations of weights in 16 bits (`kernels.linear.measured.DENSE`) anew.

FILE is the output of `python -m benchmarks.kernels linear_sweep --json FILE` or `wide_sweep`;
figures of a later file replace earlier ones. A case's entry is its fastest variant, or the library
if that is faster by 2 %. With `--fp8` it reads the output of `fp8_sweep`, with `--int4` that of
`int4_sweep`, of which only what the rule does not find becomes an entry. With `--onto` entries of
sizes that were not measured stay.
"""

import argparse
import ast
import json
import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from kernels.linear import int4_choose, measured
from kernels.linear.choose import TUNED_ROWS, TUNED_ROWS_FP8
from kernels.linear.config import Gemv, Int4Tiles, Skinny, Wide
from kernels.linear.measured import Entry, Table

_GAIN: Final = 1.02
_KERNELS: Final[dict[str, Any]] = {kind.__name__: kind for kind in (Gemv, Skinny, Wide, Int4Tiles)}
_NAMES: Final = {Gemv: "gemv", Skinny: "skinny", Wide: "wide", Int4Tiles: "int4_tiles"}
_FILES: Final = {
    "": measured.DENSE, "fp8": measured.FP8, "int4": measured.INT4,
}  # fmt: skip
_ROWS: Final = {
    "": TUNED_ROWS, "fp8": TUNED_ROWS_FP8, "int4": int4_choose.MEASURED_ROWS,
}  # fmt: skip
_CASE: Final = re.compile(r"(\w+) (\d+) x (\d+) T=(\d+)(?: (fp8|int4))?")


def main(argv: Sequence[str] | None = None) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="benchmarks.linear_table", description=__doc__)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--fp8", dest="form", action="store_const", const="fp8", default="")
    forms.add_argument("--int4", dest="form", action="store_const", const="int4")
    parser.add_argument("--onto", action="store_true", help="keep entries that were not measured")
    parser.add_argument("reports", nargs="+", type=Path, metavar="FILE")
    arguments = parser.parse_args(argv)
    name = _FILES[arguments.form]
    tables = measured.read(name) if arguments.onto else []
    for path in arguments.reports:
        report = json.loads(path.read_text(encoding="utf-8"))
        tables = with_report(tables, report, arguments.form)
    (measured.FOLDER / name).write_text(written(tables), encoding="utf-8")


def with_report(tables: Sequence[Table], report: dict[str, Any], form: str) -> list[Table]:
    """The tables with one more; of the others what it has not measured again."""
    card, _, software = report["machine"].partition(", ")
    sweep = f"python -m benchmarks.kernels {report['sweep']}"
    newest = Table(card, software, report["date"], sweep, entries_of(report["results"], form))
    again = {_key(entry) for entry in newest.entries}
    for table in tables:
        table.entries = [entry for entry in table.entries if _key(entry) not in again]
    return [*[table for table in tables if table.entries], newest]


def entries_of(results: Sequence[dict[str, Any]], form: str) -> list[Entry]:
    """The entries of a sweep's results, of weights in 16 bits (`form` ""), "fp8" or "int4"."""
    found = []
    for result in results:
        match = _CASE.fullmatch(result["case"])
        if match is None:
            raise ValueError(f"not a case of the sweep: {result['case']}")
        op, num_weight_rows, depth, num_rows, own_form = match.groups()
        rows, weight = int(num_rows), (int(num_weight_rows), int(depth))
        if not result["times_us"] or (own_form or "") != form or rows not in _ROWS[form]:
            continue
        config, time_us = _best(result["times_us"], result["peers"])
        kernel = measured.LIBRARY if config is None else _NAMES[type(config)]
        entry = Entry(
            op=op,
            rows=rows,
            weight=weight,
            us=round(time_us, 1),
            kernel=kernel,
            tiles=_tiles(config),
        )
        if form != "int4":
            found.append(entry)
        elif config != int4_choose.by_rule(rows, *weight, has_wgmma=True):
            entry.op = ""  # the kernel's tiles are the same for each
            found.append(entry)
    return found


def written(tables: Sequence[Table]) -> str:
    """The text of a data file: one line for each entry."""
    texts = []
    for table in tables:
        fields = msgspec.to_builtins(table)
        entries = fields.pop("entries")
        head = [f"    {json.dumps(name)}: {json.dumps(value)}," for name, value in fields.items()]
        lines = ",\n".join(f"      {json.dumps(entry)}" for entry in entries)
        texts.append("\n".join(["  {", *head, '    "entries": [', lines, "    ]", "  }"]))
    return "[\n" + ",\n".join(texts) + "\n]\n"


def _key(entry: Entry) -> tuple[str, int, tuple[int, int]]:
    return entry.op, entry.rows, entry.weight


def _best(times_us: dict[str, float], peers: Collection[str]) -> tuple[Any, float]:
    """The fastest variant and its time; None is the library. That must be faster by `_GAIN`: unlike
    our kernels its own do not begin before the kernel ahead has ended, which matters in a step.
    """
    own = {name: time_us for name, time_us in times_us.items() if name not in peers}
    best = min(own, key=own.__getitem__, default="")
    library_us = min([times_us[name] for name in peers if name in times_us], default=math.inf)
    if not best or library_us < own[best] / _GAIN:
        return None, library_us
    return _config(best), own[best]


def _config(name: str) -> Any:  # noqa: ANN401 - a configuration of any kernel
    """The configuration that `benchmarks.kernels.linear.written` wrote."""
    call = ast.parse(name, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    given = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    return _KERNELS[call.func.id](**given)


def _tiles(config: Any) -> dict[str, bool | int]:  # noqa: ANN401
    """The fields that are not defaults, by name."""
    if config is None:
        return {}
    defaults = config._field_defaults
    return {
        name: value
        for name, value in config._asdict().items()
        if name not in defaults or value != defaults[name]
    }


if __name__ == "__main__":
    main()
