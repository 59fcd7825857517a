"""`python -m benchmarks.engine.ranks [SHAPE]`: one card beside several cards of this host.

Owns the comparison: decode steps at a few batch sizes and the cold prompts of `modes.py`, by an
engine on one card, by an engine on `--ranks` cards, and by `--peer`, in the same minutes. Weights
are random. Each engine has processes of its own.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import torch

from benchmarks.engine.engine import MeasuredEngine
from benchmarks.engine.modes import Timed, act_on, bench_config
from benchmarks.engine.run import Options
from benchmarks.machine import describe_machine
from config import DUMMY_PREFIX
from workers.engine.parallel.start import load_leading
from workers.engine.start import load_runner
from workers.model_dir import CONFIG_NAME, dummy_dir

_MAX_WAITING: Final = 128


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.ranks")
    parser.add_argument("shape", nargs="?", default="qwen3-8b")
    parser.add_argument("--ranks", default="1,2", metavar="LIST")
    parser.add_argument("--fp8", action="store_true", help="layers in 8 bits")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="short prompts and answers, for a CPU")
    parser.add_argument(
        "--peer", default="", metavar="COMMAND",
        help="a Python that has vLLM, with its environment: 'env PYTHONPATH=DIR python3'",
    )  # fmt: skip
    parser.add_argument("--only", type=int, help="figures of so many ranks, as JSON")
    arguments = parser.parse_args()
    options = Options(arguments.shape, fp8=arguments.fp8, device=arguments.device)
    if arguments.only is not None:
        print(json.dumps(_measure(options, arguments.only, is_small=arguments.small)))
        sys.stdout.flush()
        os._exit(0)  # a library's teardown may wait for ranks that have gone
    found: dict[str, Timed] = {}
    for word in arguments.ranks.split(","):
        command = [sys.executable, "-m", "benchmarks.engine.ranks", *sys.argv[1:], "--only", word]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[f"{word} rank{'s' * (word != '1')}"] = json.loads(done.stdout.splitlines()[-1])
    peer = _ask_peer(arguments.peer, options, int(word)) if arguments.peer else {}
    print(_table(found, peer))
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = torch.cuda.get_device_name() if cards else "CPU"
    machine = "; ".join(describe_machine(("torch", "triton")).values())
    print(f"\n{options.name}, {cards} x {name}; {machine}")


def _ask_peer(peer: str, options: Options, num_ranks: int) -> Timed:
    """The same figures of vLLM on as many cards."""
    config = dummy_dir(f"{DUMMY_PREFIX}{options.name}") / CONFIG_NAME
    script = str(Path(__file__).with_name("ranks_peer.py"))
    command = [*shlex.split(peer), "-P", script, str(config), str(num_ranks)]
    command += ["--fp8"] * options.fp8
    with tempfile.TemporaryDirectory() as folder:  # a package `vllm` or ours must not lie there
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=folder, start_new_session=True
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    found: Timed = json.loads(line)
                    return found
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its ranks outlive it, and hold its output
            process.wait()
    raise SystemExit(f"{peer} printed no figures: see its error above")


def _table(found: dict[str, Timed], peer: Timed) -> str:
    """A row for each test: milliseconds, how many times as fast as with the first number of ranks,
    and how many times as fast as the peer the last number is.
    """
    first, *others = found
    heads = "".join(f" {name} | times |" for name in others) + " vLLM | times |" * bool(peer)
    lines = [f"| ms | {first} |{heads}", "|---|---|" + "---|---|" * (len(others) + bool(peer))]
    for test, took in found[first].items():
        cells = "".join(
            f" {found[name][test]:.2f} | {took / found[name][test]:.2f} |" for name in others
        )
        if peer:
            cells += f" {peer[test]:.2f} | {peer[test] / found[others[-1]][test]:.2f} |"
        lines.append(f"| {test} | {took:.2f} |{cells}")
    return "\n".join(lines)


def _measure(options: Options, num_ranks: int, *, is_small: bool) -> Timed:
    config = msgspec.structs.replace(bench_config(options), tensor_parallel=num_ranks)
    load = load_runner if num_ranks == 1 else partial(load_leading, part=_part)
    runner = load(config, lambda *_: None)
    return act_on(MeasuredEngine(runner, max_waiting=_MAX_WAITING), is_small=is_small)


def _part(cause: str) -> NoReturn:
    print(cause, file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
