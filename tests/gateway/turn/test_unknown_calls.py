"""A model whose template writes calls in no known format is told of when its files arrive."""

import pytest

from config import ModelConfig
from tests.fakes.running_gateway import open_gateway
from tests.fakes.text_files import make_text_files
from tests.fakes.worker import FakeWorker, open_worker

TOOLS = "{% for tool in tools %}<|new_tool|>{{ tool }}{% endfor %}{{ messages[0].content }}"
PLAIN = "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("template", "parser", "told"),
    [(TOOLS, "auto", 1), (TOOLS, "mistral", 0), (PLAIN, "auto", 0)],
)
async def test_a_format_that_nobody_knows_is_told(template: str, parser: str, told: int) -> None:
    """A format that is not known is reported once, unless the configuration names a parser or the
    template shows no tools.
    """
    model = ModelConfig(name="alpha", tool_parser=parser)  # type: ignore[arg-type]
    worker = FakeWorker(text="Hi", files=make_text_files(template=template))
    async with (
        open_gateway(models=[model]) as gateway,
        open_worker(gateway.address, worker),
    ):
        await gateway.wait_state("ready")
        await gateway.ask()
        assert gateway.services.feed.counts["calls unknown"] == told
