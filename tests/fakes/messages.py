"""Any message of the protocol, drawn from the types themselves, so that a new field is covered."""

from typing import Any, get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from protocol.messages import FromWorker, ToWorker
from protocol.sampling import SamplingParams

TO_WORKER_TYPES: tuple[type[msgspec.Struct], ...] = get_args(ToWorker)
FROM_WORKER_TYPES: tuple[type[msgspec.Struct], ...] = get_args(FromWorker)

_MAX_ITEMS = 4

SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 2**31 - 1),
    temperature=st.floats(0, 100),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 2**31 - 1),
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.01, 100),
    stop_token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=64).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
)


def messages_of(message_type: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Any value of one message type."""
    return _values(inspect.type_info(message_type))


def _values(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType(cls=cls):
            return SAMPLING if cls is SamplingParams else _structs(info)
        case inspect.UnionType(types=types):
            return st.one_of(*(_values(each) for each in types))
        case inspect.VarTupleType(item_type=item):
            return st.lists(_values(item), max_size=_MAX_ITEMS).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*(_values(each) for each in items))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key), _values(value), max_size=_MAX_ITEMS)
        case _:
            return _scalars(info)


def _scalars(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.BytesType(min_length=low, max_length=high):
            return st.binary(min_size=low or 0, max_size=min(high or 64, 64))
        case inspect.IntType(ge=low, le=high):
            return st.integers(
                -(2**63) if low is None else low, 2**63 - 1 if high is None else high
            )
        case inspect.FloatType(ge=low, le=high):
            return st.floats(low, high, allow_nan=False)
        case inspect.LiteralType(values=choices):
            return st.sampled_from(choices)
        case inspect.StrType(pattern=str(pattern)):
            return st.from_regex(pattern)
        case inspect.StrType():
            return st.text(max_size=20)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case _:
            raise AssertionError(f"no strategy for {info}")


def _structs(info: inspect.StructType) -> st.SearchStrategy[Any]:
    return st.builds(info.cls, **{field.name: _values(field.type) for field in info.fields})


TO_WORKER = st.one_of(*(messages_of(kind) for kind in TO_WORKER_TYPES))
FROM_WORKER = st.one_of(*(messages_of(kind) for kind in FROM_WORKER_TYPES))
