"""Every queue has a bound: its own, or one that a person has written down."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.architecture.source_trees import ROOT, files_of, parsed

REVIEWED: Final = Path(__file__).with_name("queues.toml")
PACKAGES: Final = ("gateway", "protocol", "workers", "housekeeping", "config", "herma")
WORDS: Final = ("Queue", "open_memory_channel", "deque", "cache", "PoolExecutor")


def test_a_queue_without_a_bound_of_its_own_has_been_reviewed() -> None:
    """Queues of threads, memory channels, deques that stay, and caches of functions that take
    arguments. Lists and dicts are not seen here.
    """
    found = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in files_of(*PACKAGES)
        if any(map(path.read_text(encoding="utf-8").__contains__, WORDS))
        for name in unbounded(parsed(path))
    }
    assert found == set(tomllib.loads(REVIEWED.read_text(encoding="utf-8")))


def test_the_scan_sees_each_kind() -> None:
    """A scan that finds nothing would pass."""
    text = """
class A:
    def __init__(self):
        self.one = deque()
        self.two: deque[int] = deque(maxlen=3)
        self.three, self.four = trio.open_memory_channel[int](math.inf)
        self.five = queue.Queue(3)
        self.six = queue.SimpleQueue[int]()
        self.seven = deque([1], 4)
        self.eight, self.nine = trio.open_memory_channel(5)
        self.ten = queue.Queue()
        local = deque()

@cache
def f(x): ...

@cache
def g(): ...

@lru_cache(maxsize=None)
def h(x): ...

@lru_cache(maxsize=4)
def i(x): ...
"""
    assert sorted(unbounded(ast.parse(text))) == ["f", "h", "one", "six", "ten", "three"]


def unbounded(tree: ast.Module) -> Iterator[str]:
    """The names of such queues, and of functions whose cache has no bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            first = target.elts[0] if isinstance(target, ast.Tuple) else target
            stays = isinstance(first, ast.Attribute) or node in tree.body
            if stays and not _has_bound(node.value):
                yield first.attr if isinstance(first, ast.Attribute) else ast.unparse(first)
        elif isinstance(node, ast.FunctionDef) and _is_cached(node):
            yield node.name


def _has_bound(call: ast.Call) -> bool:
    """Whether a call makes no queue, or one with a bound."""
    name = _name_of(call.func)
    sizes = [*call.args, *(one.value for one in call.keywords)]
    match name:
        case "deque":
            return len(call.args) > 1 or any(one.arg == "maxlen" for one in call.keywords)
        case "Queue" | "LifoQueue" | "PriorityQueue":
            return bool(sizes)
        case "SimpleQueue" | "ThreadPoolExecutor" | "ProcessPoolExecutor":
            return False
        case "open_memory_channel":
            return ast.unparse(sizes[0]) not in {"math.inf", "inf"}
        case _:
            return True


def _is_cached(function: ast.FunctionDef) -> bool:
    """Whether it remembers an answer for each value of its arguments, for ever."""
    return bool(function.args.args) and any(map(_caches_all, function.decorator_list))


def _caches_all(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        is_open = any(ast.unparse(one) == "maxsize=None" for one in decorator.keywords)
        return _name_of(decorator.func) == "lru_cache" and is_open
    return _name_of(decorator) == "cache"


def _name_of(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)
