"""The text files of models: what workers send is a stranger's, and may be lost or forgotten."""

import json

import pytest
import trio

from gateway.api.errors import ApiError
from gateway.link.model_files import MAX_DIGESTS, ModelTexts
from protocol.errors import ConfigError
from protocol.files_digest import files_digest
from protocol.ids import WorkerId
from protocol.messages import Dismiss, Files, GetFiles, Submit
from tests.fakes.running_gateway import open_gateway, wait_until
from tests.fakes.text_files import make_text_files
from tests.fakes.worker import DIGEST, FakeWorker, open_worker


async def _status_of_model_with(files: dict[str, bytes]) -> int:
    """The status of a request for the model with the error; the gateway and its other model
    live.
    """
    odd = FakeWorker("odd", model="odd", files=files)
    async with (
        open_gateway() as gateway,
        open_worker(gateway.address),
        open_worker(gateway.address, odd),
    ):
        await gateway.wait_workers(2)
        asked = await gateway.ask(model="odd")
        assert (await gateway.ask()).reasons == ["stop"]
    assert asked.error is not None
    return asked.error.status


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": [{"x": 1}]},
        {"chat_template": ["x"]},
        {"added_tokens_decoder": [1]},
        {"added_tokens_decoder": {"7": {}}},
        {"eos_token": {"content": 7}},
    ],
)
async def test_files_of_an_unknown_shape_cost_their_model_only(config: dict[str, object]) -> None:
    """Files of an unknown shape cost their model only: the gateway and its other models go on."""
    files = make_text_files()
    del files["chat_template.jinja"]
    files["tokenizer_config.json"] = json.dumps(config).encode()
    assert await _status_of_model_with(files) in (400, 500)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("model", {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": [["a", "b"]]}),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ],
)
async def test_a_damaged_tokenizer_costs_its_model_only(
    part: str, value: dict[str, object]
) -> None:
    """A damaged tokenizer makes the library panic, which is no `Exception`: only its model fails,
    and the gateway goes on.
    """
    files = make_text_files()
    tokenizer = {**json.loads(files["tokenizer.json"]), part: value}
    files["tokenizer.json"] = json.dumps(tokenizer).encode()
    assert await _status_of_model_with(files) == 500


SENDER = WorkerId(16 * b"s")


def _without_tokenizer(number: int) -> dict[str, bytes]:
    return {"number": str(number).encode()}


def _digest_of(number: int) -> bytes:
    return files_digest(_without_tokenizer(number))


async def test_more_files_than_can_wait_are_refused() -> None:
    """A flood of files is an error of its sender."""
    files = ModelTexts()
    for number in range(MAX_DIGESTS):
        files.put(SENDER, number.to_bytes(16, "little"), {})
    with pytest.raises(ConfigError, match="wait"):
        files.put(SENDER, b"one too many....", {})


async def test_files_that_have_come_need_no_worker() -> None:
    """Files that have come are built without their worker; missing files are not waited for without
    a sender.
    """
    files = ModelTexts()
    files.put(SENDER, DIGEST, make_text_files())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(files.run)
        assert await files.text_while(DIGEST, lambda: False) is not None
        assert await files.text_while(b"nobody has them.", lambda: False) is None
        nursery.cancel_scope.cancel()


async def test_files_in_use_are_not_the_ones_that_are_forgotten() -> None:
    """Beyond the bound the files go that were not used for longest."""
    files = ModelTexts()
    async with trio.open_nursery() as nursery:
        await nursery.start(files.run)
        for number in range(MAX_DIGESTS + 10):
            files.put(SENDER, _digest_of(number), _without_tokenizer(number))
            for used in (number, 0):
                with pytest.raises(ApiError, match=r"tokenizer\.json"):
                    await files.text(_digest_of(used))
        assert _digest_of(0) in files
        assert _digest_of(1) not in files
        nursery.cancel_scope.cancel()


async def test_forgotten_files_are_asked_for_again() -> None:
    """A request for a model whose files were forgotten brings them back."""
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        await gateway.ask()
        gateway.services.files._entries.clear()
        assert (await gateway.ask()).reasons == ["stop"]
        assert len(worker.all_of(GetFiles)) == 2


async def test_files_that_never_came_are_asked_for_at_the_next_registration() -> None:
    """A worker whose engine died with the question unanswered is asked again."""

    class Forgetful(FakeWorker):
        def say(self, message: object) -> None:
            if isinstance(message, Files) and len(self.all_of(GetFiles)) == 0:
                return
            super().say(message)  # type: ignore[arg-type]

    fake = Forgetful()
    async with open_gateway() as gateway, open_worker(gateway.address, fake):
        await fake.wait(GetFiles)
        fake.fail_engine()
        fake.register()
        await fake.wait(GetFiles, count=2)
        await wait_until(lambda: fake.facts.files_digest in gateway.services.files)


class Liar(FakeWorker):
    """Names the digest of the true files, and sends others."""

    def say(self, message: object) -> None:
        if isinstance(message, Files):
            other = {**message.files, "chat_template.jinja": b"{{ 'spy' }}"}
            message = Files(message.digest, other)
        super().say(message)  # type: ignore[arg-type]


async def test_files_that_do_not_fit_their_digest_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Files that do not fit their digest are refused with one line, also when the worker asks again
    and starts anew; it sees no prompt. A worker with the true files serves.
    """
    async with open_gateway() as gateway:
        liar = Liar("liar")
        async with open_worker(gateway.address, liar):
            refused = await liar.wait(Dismiss)
            assert "do not fit the digest" in refused.reason
            liar.register()
            await liar.wait(Dismiss, count=2)
        again = Liar("liar", identity=b"another identity")
        async with (
            open_worker(gateway.address, again),
            open_worker(gateway.address, FakeWorker("w2", text="True.")),
        ):
            await again.wait(Dismiss)
            asked = await gateway.ask()
            assert asked.text == "True."
        assert not liar.all_of(Submit) + again.all_of(Submit)
    assert caplog.text.count("worker liar refused: its tokenizer and template files") == 1


async def test_the_others_are_asked_for_the_true_files() -> None:
    """A request that waits for the files while they turn out to be false gets the true ones."""
    slow = FakeWorker("w2", text="True.")
    async with open_gateway() as gateway, open_worker(gateway.address, slow):
        assert (await gateway.ask()).text == "True."  # its files are there
        files = gateway.services.files
        files._entries.clear()
        lies = {"tokenizer.json": b"{}"}
        files.put(SENDER, DIGEST, lies)
        assert (await gateway.ask()).text == "True."
        await slow.wait(GetFiles, count=2)
