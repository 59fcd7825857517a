"""The tree of chains equals a plain list of chains."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.chain_tree import ChainTree, common_prefix
from protocol.ids import BlockDigest
from tests.fakes.fleet import chain

Chain = tuple[BlockDigest, ...]

_chains = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=4).map(
    lambda parts: chain(*parts)
)


def _depth(chains: list[Chain], asked: Chain) -> int:
    return max((common_prefix(asked, other) for other in chains), default=0)


@given(st.lists(st.tuples(_chains, st.booleans()), max_size=30), _chains)
def test_the_tree_equals_a_list_of_chains(steps: list[tuple[Chain, bool]], asked: Chain) -> None:
    """Whatever enters and leaves, gains, losses, depths and counts are those of the list."""
    tree, model = ChainTree(), list[Chain]()
    for number, (entering, leaves) in enumerate(steps):
        if leaves and model:
            gone = model.pop(number % len(model))
            assert tree.leave(gone) == len(gone) - _depth(model, gone)
        else:
            assert tree.enter(entering) == len(entering) - _depth(model, entering)
            model.append(entering)
        assert tree.depth(asked) == _depth(model, asked)
        _check_spans(tree, model, asked)
    for left in range(len(model), 0, -1):
        assert tree.leave(model[left - 1]) == len(model[left - 1]) - _depth(
            model[: left - 1], model[left - 1]
        )
    assert tree.spans(asked) == []


def _check_spans(tree: ChainTree, model: list[Chain], asked: Chain) -> None:
    start = 0
    for end, num_chains in tree.spans(asked):
        for position in range(start + 1, end + 1):
            assert num_chains == sum(common_prefix(asked, c) >= position for c in model)
        start = end
    assert start == _depth(model, asked)


def test_forks_that_are_gone_leave_no_pieces() -> None:
    """A prefix in use for days is one run of blocks again after every fork has left."""
    tree, prefix = ChainTree(), chain(("p", 50))
    tree.enter(prefix)
    for at in range(1, 50):
        fork = (*prefix[:at], *chain((f"fork {at}", 3)))
        tree.enter(fork)
        tree.leave(fork)
    assert tree.spans(prefix) == [(50, 1)]


@given(shared=st.integers(0, 70), left=st.integers(0, 70), right=st.integers(0, 70))
def test_bisection_finds_the_whole_shared_prefix(shared: int, left: int, right: int) -> None:
    """Two chains share exactly the blocks before they part."""
    a = chain(("shared", shared), ("left", left))
    b = chain(("shared", shared), ("right", right))
    assert common_prefix(a, b) == common_prefix(b, a) == shared
    assert common_prefix(a, a) == len(a)
