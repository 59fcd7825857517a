"""Which model a body names, in JSON and in forms, and how it is called elsewhere."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import ApiError, named_body

BOUNDARY = "x--y"
KIND = f'multipart/form-data; boundary="{BOUNDARY}"'
NAMES = st.sampled_from(["file", "language", "models", "mode", "prompt"])
BYTES = st.binary(max_size=80).filter(lambda data: f"--{BOUNDARY}".encode() not in data)


def part(name: str, data: bytes, filename: str = "") -> bytes:
    named = f'; filename="{filename}"' if filename else ""
    head = f'Content-Disposition: form-data; name="{name}"{named}\r\nContent-Type: a/b\r\n\r\n'
    return b"--" + BOUNDARY.encode() + b"\r\n" + head.encode() + data + b"\r\n"


def form(parts: list[bytes]) -> bytes:
    return b"".join(parts) + b"--" + BOUNDARY.encode() + b"--\r\n"


@given(before=st.lists(st.tuples(NAMES, BYTES), max_size=3), after=BYTES)
def test_the_model_of_a_form_is_renamed_and_nothing_else(
    before: list[tuple[str, bytes]], after: bytes
) -> None:
    """Wherever its part stands, and whatever the files contain."""
    first = [part(name, data, "a.wav") for name, data in before]
    body = form([*first, part("model", b"mine"), part("file", after)])
    found = named_body(KIND, body)
    assert found is not None
    assert found.model == "mine"
    assert found.renamed("theirs") == form([*first, part("model", b"theirs"), part("file", after)])


@given(st.binary(max_size=200))
def test_garbage_names_nothing(data: bytes) -> None:
    """A form that is none is never a crash."""
    assert named_body(KIND, b"--" + data) is None


def test_json_keeps_its_fields() -> None:
    """JSON keeps its fields: only the name changes."""
    body = msgspec.json.encode({"model": "mine", "x": {"deep": [1, None]}, "input": "y"})
    found = named_body("application/json; charset=utf-8", body)
    assert found is not None
    told = msgspec.json.decode(found.renamed("theirs"))
    assert told == {"model": "theirs", "x": {"deep": [1, None]}, "input": "y"}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"input": "x"}'),
        ("application/json", b'{"model": 7}'),
        ("application/octet-stream", b'{"model": "m"}'),
        (KIND, form([part("file", b"x")])),
    ],
)
def test_a_body_without_a_model(kind: str, body: bytes) -> None:
    """A body without a model is refused: nothing says who should answer."""
    assert named_body(kind, body) is None


def test_what_cannot_be_read_is_refused() -> None:
    """What cannot be read is refused, with what is wrong."""
    with pytest.raises(ApiError, match="not valid JSON"):
        named_body("application/json", b"{")
    with pytest.raises(ApiError, match="no boundary"):
        named_body("multipart/form-data", b"--x")


def test_a_part_may_say_what_it_is_anyway() -> None:
    """OkHttp writes the length of each part; others name its charset, as it is."""
    head = "Content-Length: 1\r\nContent-Type: text/plain; charset=UTF-8\r\n"
    found = named_body(KIND, raw_form(f"{head}{M}m"))
    assert found is not None
    assert found.model == "m"


M = 'Content-Disposition: form-data; name="model"\r\n\r\n'


def raw_form(*parts: str, end: str = "--x--y--\r\n") -> bytes:
    return ("".join(f"--x--y\r\n{one}\r\n" for one in parts) + end).encode()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        # The name of a file is no name of a field.
        (
            KIND,
            raw_form('Content-Disposition: form-data; name="a"; filename="; name=model\r\n\r\nm'),
        ),
        (
            KIND,
            raw_form("Content-Disposition: form-data; name*=utf-8''model\r\n\r\nother", M + "m"),
        ),
        (KIND, raw_form('Content-Disposition: form-data; name="mo\\del"\r\n\r\nother', M + "m")),
        (KIND, raw_form(M + "m", 'Content-Disposition: form-data;\r\n name="model"\r\n\r\nother')),
        (KIND, raw_form(M + "m", "X-A: b\r\n\r\nother")),
        (KIND, raw_form(M + "m", f"{M[:-4]}\r\n{M}other")),
        # A server that takes line feeds alone finds a second field in this file.
        (
            KIND,
            raw_form(f"{M.replace('model', 'file')}\n--x--y\n{M[:-4]}\n\nother\n--x--y\n", M + "m"),
        ),
        (KIND, b"\r\n--x--y" + raw_form(M + "m")),
        (KIND, raw_form(M + "m", end="--x--y--\r\n" + raw_form(M + "other").decode())),
        (KIND, raw_form(M + "m", end="")),
        (KIND, raw_form(f"Content-Transfer-Encoding: base64\r\n{M}bQ==")),
        (KIND, raw_form(f"Content-Length: 2\r\n{M}m")),
        (KIND, raw_form(f"Content-Encoding: gzip\r\n{M}m")),
        (KIND, raw_form(f"Content-Type: text/plain; charset=utf-7\r\n{M}m")),
        (KIND, raw_form(f'Content-Type: text/plain; a=b;Charset="utf-16"\r\n{M}m')),
        (KIND, raw_form(M + "m", M.replace("model", "_charset_") + "utf-16")),
        ("multipart/form-data; xboundary=z; boundary=x--y; boundary=z", raw_form(M + "m")),
        ('multipart/form-data; boundary="x--y', raw_form(M + "m")),
        ("multipart/form-data; boundary=x--y junk", raw_form(M + "m")),
    ],
)
def test_a_form_that_servers_could_read_in_two_ways_is_refused(kind: str, body: bytes) -> None:
    """The model that is priced and replaced is the one that the server reads."""
    with pytest.raises(ApiError) as refused:
        named_body(kind, body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_form")


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data; boundary=x--y",
        "multipart/form-data;boundary=x--y",
        'multipart/form-data; charset=utf-8; boundary="x--y"',
        "Multipart/Form-Data; Boundary=x--y;",
    ],
)
def test_the_forms_of_clients_are_read(kind: str) -> None:
    """Names without quotes, names of files in two notations, and other lines above a value."""
    file = (
        'Content-Disposition: form-data; name=file; filename="a \\"b\\".wav"; filename*=utf-8\'\'a'
    )
    body = raw_form(file + "\r\nContent-Type: audio/wav\r\n\r\n\n\n", M + "m")
    found = named_body(kind, body)
    assert found is not None
    assert found.model == "m"
    assert found.renamed("other") == body.replace(b"\r\n\r\nm\r\n", b"\r\n\r\nother\r\n")
