"""Checks raw tables against the structs of `config/tables`: unknown or missing keys, wrong types.

Owns the texts and places of these mistakes, because msgspec's own texts lack the names of tables
such as [providers.NAME], and what other programs call our keys. Must not know what a key does.
"""

import difflib
import json
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin

import msgspec

from config.mistakes import Mistake, Place, dotted, name_of, title
from config.reference import table_title, tables
from config.tables import PATTERNS, Config

_TOML_WORDS: Final = {
    "`object`": "a table",
    "`array`": "a list",
    "`int`": "a whole number",
    "`float`": "a number",
    "`str`": "a text in quotes",
    "`bool`": "true or false",
}
_MAX_QUOTED: Final = 40
_MAX_HOMES: Final = 3
_LEAST_ALIKE: Final = 0.65
"""The least similarity of an unknown key to a key that is proposed. `max_tokens` and
`first_token_s`, which have nothing in common, have 0.61.
"""

_OTHER_WORDS: Final = {
    **dict.fromkeys(
        ("ollama", "lmstudio", "lm-studio", "lm_studio", "tgi", "litellm", "transformers", "mlx"),
        "openai",
    ),
    **dict.fromkeys(("llama.cpp", "llamacpp", "llama_cpp", "llama-server"), "llama-cpp"),
    "herma": "native",
}
"""Words that people write for a choice, and the choice; none is similar enough to guess."""

_OTHER_KEYS: Final = {
    **dict.fromkeys(
        ("max_model_len", "max_seq_len", "ctx_size", "num_ctx", "n_ctx", "context_size"),
        "context_length",
    ),
    **dict.fromkeys(("max_num_seqs", "parallel", "num_parallel"), "max_seqs"),
    **dict.fromkeys(("max_num_batched_tokens", "chunked_prefill_size"), "token_budget"),
    **dict.fromkeys(("kv_cache_dtype", "cache_type_k"), "kv_dtype"),
    **dict.fromkeys(("tp", "tp_size"), "tensor_parallel"),
    **dict.fromkeys(("gpu", "gpus"), "device"),
    **dict.fromkeys(("path", "model_path", "model_dir"), "model"),
    **dict.fromkeys(("url", "endpoint", "api_base"), "base_url"),
    **dict.fromkeys(("listen", "bind", "address"), "host"),
    **dict.fromkeys(("key", "secret", "token"), "hash"),
}
"""Keys of other programs, and ours where a table has it; none is similar enough to guess."""

_UNITS: Final = {"_s": "of seconds", "_ms": "of milliseconds", "_bytes": "of bytes"}


def type_mistakes(value: object, kind: object, place: Place = ()) -> Iterator[Mistake]:
    """Why `value`, at `place`, is not a `kind`, in the order of the file. Only the first mistake is
    certain; later ones may follow from it.
    """
    kind = _without_none(kind)
    if get_origin(kind) in (Union, UnionType):
        return _in_union(value, kind, place)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _in_table(value, kind, place)
    match get_origin(kind), get_args(kind):
        case (origin, (item, *_)) if origin is tuple:
            return _in_list(value, item, place)
        case (origin, (_, item)) if origin is dict:
            return _in_named(value, item, place)
        case (origin, choices) if origin is Literal:
            return _in_choice(value, choices, place)
        case _:
            return _in_value(value, kind, place)


def _in_table(value: object, struct: type[msgspec.Struct], place: Place) -> Iterator[Mistake]:
    if not isinstance(value, dict):
        yield Mistake(place, f"{name_of(place)} is a table: write {_header(place)}, or {{ ... }}")
        return
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    for key, inner in value.items():
        if key in fields:
            yield from type_mistakes(inner, fields[key].type, (*place, key))
        else:
            hint = _hint(key, fields, is_table=not place and not _is_value(inner))
            text = f"unknown key `{dotted((key,))}` in {title(place)}; "
            text += hint or f"known: {', '.join(sorted(fields))}"
            yield Mistake((*place, key), text)
    for name, field in fields.items():
        if field.required and name not in value:
            yield Mistake(place, f"{title(place)} needs `{name}`")
    # Rules over several keys are checked by the struct itself.
    if (refusal := _refusal(value, struct)) is not None:
        yield Mistake(place, f"{title(place)}: {refusal}")


def _in_list(value: object, item: object, place: Place) -> Iterator[Mistake]:
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from type_mistakes(inner, item, (*place, index))
    elif isinstance(item, type) and issubclass(item, msgspec.Struct):
        remedy = f"write [[{_path(place)}]], or {place[-1]} = [{{ ... }}]"
        yield Mistake(place, f"{name_of(place)} is a list of tables: {remedy}")
    else:
        yield Mistake(place, f"{name_of(place)} is a list: write {place[-1]} = [...]")


def _in_named(value: object, item: object, place: Place) -> Iterator[Mistake]:
    struct = item if isinstance(item, type) and issubclass(item, msgspec.Struct) else None
    if not isinstance(value, dict):
        what, form = "tables", f"[{_path(place)}.NAME]"
        if struct is None:
            what, form = "values", f"{place[-1]} = {{ NAME = ... }}"
        yield Mistake(place, f"{name_of(place)} holds {what} by name: write {form}")
        return
    keys = () if struct is None else struct.__struct_fields__
    for key, inner in value.items():
        if key in keys and not isinstance(inner, dict):
            remedy = f"write [{_path(place)}.NAME] above it"
            yield Mistake((*place, key), f"`{key}` is set in {title(place)} itself: {remedy}")
        else:
            yield from type_mistakes(inner, item, (*place, key))


def _in_union(value: object, kind: object, place: Place) -> Iterator[Mistake]:
    """The mistakes of a value that may be one of some words, a table or a number."""
    kinds = get_args(kind)
    words = [word for one in kinds if get_origin(one) is Literal for word in get_args(one)]
    struct = next((one for one in kinds if isinstance(one, type(msgspec.Struct))), None)
    other = "a number" if struct is None else f"a table {{ {struct.__struct_fields__[0]} = ... }}"
    if struct is not None and isinstance(value, dict):
        yield from _in_table(value, struct, place)
    elif words and (struct is not None or isinstance(value, str)):
        yield from _in_choice(value, tuple(words), place, f", or {other}")
    else:
        yield from _in_value(value, kind, place)


def _in_choice(
    value: object, choices: tuple[Any, ...], place: Place, others: str = ""
) -> Iterator[Mistake]:
    # In Python 32.0 and true equal integers.
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        said, known = _toml(value), [_toml(choice) for choice in choices]
        other = _OTHER_WORDS.get(str(value))
        near = other if other in choices else _nearest(str(value), map(str, choices))
        hint = f"did you mean {_toml(near)}? " if near else ""
        text = f"cannot be {said}; {hint}Known: {', '.join(known)}{others}"
        yield Mistake(place, f"{name_of(place)} {text}")


def _in_value(value: object, kind: object, place: Place) -> Iterator[Mistake]:
    if (text := _refusal(value, kind)) is not None:
        yield Mistake(place, f"{name_of(place)}: {_with_unit(text, place)}")


def _refusal(value: object, kind: object) -> str | None:
    """The error of msgspec for `value` in terms of TOML, without its place; None if it fits."""
    try:
        msgspec.convert(value, cast("type", kind))
    except msgspec.ValidationError as error:
        text = str(error).partition(" - at `$")[0]
        for pattern, words in PATTERNS.items():
            text = text.replace(f"`str` matching regex {pattern!r}", words)
        for theirs, ours in _TOML_WORDS.items():
            text = text.replace(theirs, ours)
        return text[:1].lower() + text[1:]
    return None


def _with_unit(text: str, place: Place) -> str:
    """The refusal of a text where a number is expected, with the unit that the key's name says."""
    if not text.endswith("got a text in quotes") or "number" not in text:
        return text
    name = next((part for part in reversed(place) if isinstance(part, str)), "")
    unit = next((words for end, words in _UNITS.items() if name.endswith(end)), "")
    return text.replace("number", f"number {unit}".rstrip(), 1) + "; a number stands without quotes"


def _without_none(kind: object) -> object:
    """`kind` without None, which TOML does not have: an optional key is absent."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    kinds = [each for each in get_args(kind) if each is not NoneType]
    return kinds[0] if len(kinds) == 1 else kind


def _header(place: Place) -> str:
    return f"[[{_path(place)}]]" if isinstance(place[-1], int) else f"[{_path(place)}]"


def _path(place: Place) -> str:
    """The name in a table header, without the numbers of items."""
    return dotted(tuple(part for part in place if isinstance(part, str)))


def _is_value(inner: object) -> bool:
    return not isinstance(inner, dict | list)


def _hint(key: str, fields: Collection[str], *, is_table: bool) -> str:
    """What was meant by an unknown key: the key of its table that other programs call so, or the
    key of another table with this very name, which is more certain than a similar name, or else the
    nearest key of its own table. `is_table`: it is
    the head of a table of the file, as [model].
    """
    near = other if (other := _OTHER_KEYS.get(key)) in fields else None
    if near is None and not is_table and (homes := _homes().get(key)):
        return f"it is a key of {' and '.join(homes)}"
    near = near or _nearest(key, fields, _LEAST_ALIKE)
    return f"did you mean `{near}`?" if near else ""


@cache
def _homes() -> dict[str, tuple[str, ...]]:
    """The tables that have a key, by its name. One that many have says nothing about its home."""
    homes: dict[str, tuple[str, ...]] = {}
    for struct in tables():
        if struct is not Config:
            for name in struct.__struct_fields__:
                homes[name] = (*homes.get(name, ()), table_title(struct))
    return {name: titles for name, titles in homes.items() if len(titles) <= _MAX_HOMES}


def _nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def _toml(value: object) -> str:
    """`value` in TOML, cut to 40 characters: "native", 32, true."""
    return json.dumps(value, ensure_ascii=False, default=str)[:_MAX_QUOTED]
