"""The options of the benchmarks, and which one `herma bench` runs by them.

Owns the options. Imports a benchmark only to run it.
"""

import argparse
import os
from pathlib import Path

from benchmarks.result_file import result_file
from herma.options import Commands, add_command, add_vocabulary


def run_benchmark(arguments: argparse.Namespace) -> int:
    """Run the benchmark. Returns 0 if every answer was right, else 1. Raises `HermaError`."""
    if arguments.action == "routing":
        from benchmarks.routing import command

        return command.run_command(arguments)
    if arguments.action == "gateway":
        from benchmarks.gateway import command as gateway_command

        return gateway_command.run_command(arguments)
    if arguments.action in {"http", "agents"}:
        from benchmarks.agents import command as agents_command
        from benchmarks.http import command as http_command
        from config import found_config
        from herma.processes import gateway_url

        if arguments.url is None:
            arguments.url = [f"{gateway_url(None, found_config(Path.cwd(), os.environ))}/v1"]
        if arguments.action == "http":
            return http_command.run_command(arguments)
        return agents_command.run_command(arguments)
    if arguments.action == "quality":
        from benchmarks.quality import command as quality_command

        return quality_command.run_command(arguments)
    if arguments.action == "speculation":
        from benchmarks.speculation import command as speculation_command

        return speculation_command.run_command(arguments)
    from benchmarks.engine.command import run_command

    return run_command(arguments)


def add_benchmarks(bench: argparse.ArgumentParser) -> None:
    """Add a command for each benchmark, with its options."""
    actions = bench.add_subparsers(dest="action", required=True, metavar="ACTION")
    engine = add_command(actions, "engine", "the engine's speed, beside what the card allows")
    engine.add_argument("--model", required=True, help="directory, hub id, or qwen3-0.6b ... -32b")
    engine.add_argument("--dummy", action="store_true", help="random weights of the model's shape")
    form = engine.add_mutually_exclusive_group()
    form.add_argument("--fp8", action="store_true", help="layers in 8 bits")
    form.add_argument("--int4", action="store_true", help="layers in 4 bits")
    add_vocabulary(engine)
    engine.add_argument("--prefill-fp8", action="store_true", help="long prompts in 8 bits")
    engine.add_argument("--invariant", action="store_true", help="tokens that no load changes")
    engine.add_argument(
        "--tests", default="all", metavar="LIST", help="names by commas, or all, soak, smoke"
    )
    engine.add_argument(
        "--batches", default="", metavar="LIST", help="sequences at once of the decode tests"
    )
    engine.add_argument(
        "--lengths", default="", metavar="LIST", help="prompt tokens of the first-token tests"
    )
    engine.add_argument(
        "--runs",
        type=int,
        default=0,
        metavar="N",
        help="runs of each test; default: 3, of the workload 1",
    )
    engine.add_argument(
        "--requests", type=int, default=0, metavar="N", help="of the workload; default: 256"
    )
    engine.add_argument(
        "--kv-tokens", type=int, default=0, metavar="N", help="keys and values; default: 320,000"
    )
    engine.add_argument(
        "--checked", type=int, default=0, metavar="N", help="answers of each test that are checked"
    )
    engine.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    engine.add_argument("--seconds", type=float, default=480.0, help="length of the soak")
    engine.add_argument("--json", type=result_file, metavar="FILE", help="write the figures to it")
    engine.add_argument(
        "--plot", type=result_file, metavar="FILE", help="draw a PNG; needs matplotlib"
    )
    engine.add_argument(
        "--trace", type=result_file, metavar="FILE", help="write every step of every test to it"
    )
    _add_bench_quality(actions)
    _add_bench_gateway(actions)
    _add_bench_http(actions)
    _add_bench_agents(actions)
    _add_bench_routing(actions)
    _add_bench_speculation(actions)


def _add_bench_quality(actions: Commands) -> None:
    quality = add_command(
        actions, "quality", "perplexity and agreement of a setting with the same model without it"
    )
    quality.add_argument("--model", default="builtin:herma-tiny", help="directory, hub id or shape")
    quality.add_argument(
        "--setting",
        action="append",
        metavar="KEY=VALUE[,KEY=VALUE]",
        help="keys of a worker to compare; repeatable; default: all ways to 8 bits",
    )
    quality.add_argument(
        "--text",
        action="append",
        type=Path,
        metavar="FILE",
        help="a text to measure on; repeatable",
    )
    quality.add_argument(
        "--tokens", type=int, default=8192, metavar="N", help="tokens of each text"
    )
    quality.add_argument("--window", type=int, default=512, metavar="N", help="tokens of a prompt")
    quality.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    quality.add_argument("--json", type=result_file, metavar="FILE", help="write the figures to it")


def _add_bench_gateway(actions: Commands) -> None:
    gateway = add_command(actions, "gateway", "what a request and a token cost the gateway")
    gateway.add_argument(
        "--tests",
        metavar="LIST",
        help="names by commas; smoke: a short run; an unknown name lists them; default: all",
    )
    gateway.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="[NAME=]COMMAND",
        help="measure another gateway in turns with this one; the command's {port}, {upstream} (a "
        "port of an OpenAI-compatible server) and {folder} are filled in; repeatable",
    )
    gateway.add_argument(
        "--versus",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="measure another Herma in turns with this one: a Python that imports it; repeatable",
    )
    gateway.add_argument(
        "--peer-file",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="copy FILE into a peer's {folder}, filled in as its command is; repeatable",
    )
    gateway.add_argument(
        "--share",
        type=float,
        default=1.0,
        metavar="X",
        help="of --peer and --versus: ask this part of the requests",
    )
    gateway.add_argument(
        "--runs",
        type=int,
        default=5,
        metavar="N",
        help="runs of each test, or turns beside others, of which the median counts",
    )
    gateway.add_argument(
        "--link",
        choices=("ipc", "tcp"),
        default="ipc",
        help="to the worker: ipc (a Unix socket) or tcp (ZeroMQ)",
    )
    gateway.add_argument("--json", type=result_file, metavar="FILE", help="write the figures to it")


def _add_servers(parser: argparse.ArgumentParser) -> None:
    """The servers of a comparison over HTTP (`benchmarks.http.command.endpoints_of` reads them)."""
    parser.add_argument(
        "--url",
        action="append",
        help="of a server, with /v1; once for each; default: the gateway on this host",
    )
    parser.add_argument(
        "--name", action="append", help="the server's name in the table; once for each --url"
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="ID",
        help="one for all servers, or one for each; default: the first it lists",
    )
    parser.add_argument(
        "--key-env",
        action="append",
        metavar="NAME",
        help="variable with the API key; once for each --url; -: none",
    )


def _add_answers(parser: argparse.ArgumentParser, *, patience_s: float) -> None:
    """Add the options of answers: their seed, the patience with them, and their end."""
    parser.add_argument("--seed", type=int, metavar="N", help="default: another one every time")
    parser.add_argument(
        "--patience",
        type=float,
        default=patience_s,
        metavar="S",
        help="seconds of silence that end a request",
    )
    parser.add_argument(
        "--no-ignore-eos",
        action="store_true",
        help="let answers end early; for servers that refuse ignore_eos",
    )


def _add_bench_http(actions: Commands) -> None:
    http = add_command(actions, "http", "OpenAI-compatible servers under the same load, in turns")
    add = http.add_argument
    _add_servers(http)
    add("--cells", default="1,8,64,256", metavar="N,N", help="streams at once; -: none")
    add("--agents", default="32x4", metavar="NxT", help="conversations x turns; -: none")
    add(
        "--agent-tokens",
        default="4000,8000",
        metavar="N,N",
        help="agents' prompt tokens: shared, and of the last turn",
    )
    add(
        "--cold",
        default="8x15000",
        metavar="NxT",
        help="conversations x tokens of a cold prefix; -: none",
    )
    add(
        "--stagger",
        action="store_true",
        help="run each cell again with starts drawn over the time of one answer",
    )
    add("--input", type=int, default=550, metavar="N", help="tokens of a prompt")
    add("--output", type=int, default=128, metavar="N", help="tokens of an answer")
    add("--requests", type=int, default=2, metavar="N", help="requests of a stream in a round")
    add("--rounds", type=int, default=3, metavar="N", help="times through all cells")
    _add_answers(http, patience_s=120.0)
    add("--text", type=Path, metavar="FILE", help="take the prompts' words from it")
    add("--json", type=result_file, metavar="FILE", help="write the figures to it")
    add("--plot", type=result_file, metavar="FILE", help="draw a PNG; needs matplotlib")


def _add_bench_agents(actions: Commands) -> None:
    agents = add_command(
        actions, "agents", "agents of the field's shape: as many as fit in memory, and more"
    )
    add = agents.add_argument
    _add_servers(agents)
    add(
        "--kv-tokens",
        type=float,
        required=True,
        metavar="N",
        help="tokens of keys and values that the server holds: what fits",
    )
    add("--ratios", default="1,1.5,2,4", metavar="X,X", help="multiples of the agents that fit")
    add("--seconds", type=float, default=300.0, metavar="S", help="of each run")
    add("--warm", type=float, default=60.0, metavar="S", help="before it, not counted")
    add("--size", type=float, default=1.0, metavar="X", help="multiplies all lengths")
    add("--output", type=int, metavar="N", help="tokens of an answer, at most")
    _add_answers(agents, patience_s=900.0)
    add("--json", type=result_file, metavar="FILE", help="write the figures to it")


def _add_bench_speculation(actions: Commands) -> None:
    speculation = add_command(
        actions, "speculation", "what drafts bring: by depth, sequences at once, and kind of text"
    )
    add = speculation.add_argument
    add("--model", default="builtin:herma-tiny", help="directory, hub id or shape")
    add(
        "--drafter",
        required=True,
        metavar="PATH",
        help="directory; ngram or suffix (earlier text); dflash or mtp (drawn weights)",
    )
    add(
        "--acceptance",
        metavar="NAME|P,P",
        help="accept drafts as often as a schedule says: vllm, constant, mtp, or one by place",
    )
    add("--batches", default="1,8", metavar="N,N", help="sequences at once")
    add(
        "--depths",
        default="0-15",
        metavar="N-N",
        help="drafts of a pass; adaptive depth is measured too",
    )
    add("--fixed-only", action="store_true", help="leave adaptive depth out")
    add("--profile", action="store_true", help="add what a card does in a few steps of each figure")
    add(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="times through all depths, of which the fastest counts",
    )
    add(
        "--cpu-time",
        action="store_true",
        help="measure this process's CPU time, for machines that others use",
    )
    add("--prompts", type=int, default=8, metavar="N", help="prompts of each kind, at least")
    add("--prompt-tokens", type=int, default=2048, metavar="N", help="tokens of the longest prompt")
    add("--outputs", type=int, default=256, metavar="N", help="tokens of an answer, at most")
    add("--temperature", type=float, default=0.0, metavar="T", help="of the draws")
    add(
        "--text",
        action="append",
        type=Path,
        metavar="FILE",
        help="prompts, in paragraphs; repeatable",
    )
    add("--fp8", action="store_true", help="layers in 8 bits")
    add(
        "--drafter-fp8",
        action=argparse.BooleanOptionalAction,
        help="drafter in 8 bits, or not; default: where the card has them",
    )
    add("--dtype", metavar="TYPE", help="float32, bfloat16 or float16")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    add("--json", type=result_file, metavar="FILE", help="write the figures to it")
    add("--plot", type=result_file, metavar="FILE", help="draw a PNG; needs matplotlib")


def _add_bench_routing(actions: Commands) -> None:
    routing = add_command(actions, "routing", "routing policies on traces, in virtual time")
    add = routing.add_argument
    add(
        "--trace",
        action="append",
        metavar="FILE|fleet|long|overload|fanout",
        help="what is replayed; repeatable; default: fleet",
    )
    add("--workers", default="2,4,8,16", metavar="N,N", help="sizes of fleets")
    add("--policies", default="all", metavar="NAMES", help="names by commas")
    add("--load", default="0.5,0.8,0.95,1.1", metavar="X,X", help="parts of the capacity")
    add("--kv-tokens", type=int, metavar="N", help="tokens of keys and values of each worker")
    add(
        "--states",
        type=int,
        metavar="N",
        help="states of prefixes of each worker, as hybrids keep them",
    )
    add("--limit", type=int, metavar="N", help="requests of each trace, at most")
    add("--seeds", default="0,1,2", metavar="N,N", help="seeds of generated fleets")
    add("--processes", type=int, default=2, metavar="N", help="processes side by side")
    add(
        "--experiment",
        choices=("fairness", "collapse"),
        help="run this experiment instead of the table",
    )
    add("--agents", action="store_true", help="run agents that do not all fit in memory instead")
    add("--ratios", default="1,1.5,2,4", metavar="X,X", help="of --agents: multiples of what fits")
    add("--readers", type=int, default=0, metavar="N", help="of --agents: people who chat beside")
    add("--waits", action="store_true", help="show announced waits beside real ones instead")
    add("--moves", action="store_true", help="explain turns placed away from their cache instead")
    add("--validate", action="store_true", help="compare the simulator with two real CPU workers")
    add("--json", type=result_file, metavar="FILE", help="write the figures to it")
    add(
        "--rows",
        type=Path,
        metavar="FOLDER",
        help="keep each row in a file there; a row that is there is not simulated again",
    )
    add(
        "--beside",
        type=Path,
        action="append",
        metavar="FILE",
        help="compare with the rows of an earlier --json; repeatable",
    )
    add("--plot", type=result_file, metavar="FILE", help="draw a PNG; needs matplotlib")
