"""What `{version}` in a launch stands for."""

from pathlib import Path

import pytest

from config import LaunchConfig, parse_config
from protocol.errors import ConfigError
from workers.versions import BASE, InstalledVersion, installation_of, launch_version, resolved

TABLE = """
[[workers]]
name = "w"
model = "builtin:herma-tiny"
serves = "m"
engine = "vllm"
url = "http://127.0.0.1:1"
launch = {{ {launch} }}
"""


def test_the_current_version_then_the_base(tmp_path: Path) -> None:
    """A version may be asked for by its id."""
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    launch = LaunchConfig(("{version}/bin/run",), installation="x", base="/opt/x")
    assert launch_version(launch, environ) == (BASE, "/opt/x")
    installation = installation_of("x", environ)
    installation.add(InstalledVersion("1.0", "environment"))
    installation.add(InstalledVersion("img", "image", reference="sha256:abc"))
    installation.switch("1.0", "")
    assert launch_version(launch, environ) == ("1.0", str(installation.environment("1.0")))
    assert launch_version(launch, environ, "img") == ("img", "sha256:abc")
    assert launch_version(launch, environ, BASE) == (BASE, "/opt/x")
    with pytest.raises(ConfigError, match=r"`x` has no version 9 .* `herma upgrade x`"):
        launch_version(launch, environ, "9")


def test_every_word_of_a_launch_has_it(tmp_path: Path) -> None:
    """What a worker starts has no placeholder left."""
    launch = (
        'argv = ["{version}/bin/run", "--v={version}"], stop = ["rm", "{version}"], '
        'env = { V = "{version}" }, cwd = "{version}", installation = "x", base = "/opt/x"'
    )
    config = parse_config(TABLE.format(launch=launch), "herma.toml").workers[0]
    whole, version = resolved(config, {"XDG_STATE_HOME": str(tmp_path)})
    assert version == BASE
    assert whole.launch is not None
    assert "{version}" not in repr(whole.launch)
    assert whole.launch.argv == ("/opt/x/bin/run", "--v=/opt/x")
    assert (whole.launch.cwd, whole.launch.env["V"]) == ("/opt/x", "/opt/x")


@pytest.mark.parametrize(
    ("launch", "what"),
    [
        ('argv = ["{version}/run"]', "`{version}` needs `installation`"),
        ('argv = ["run"], installation = "x"', "needs `{version}` in argv"),
        ('argv = ["run"], base = "/opt"', "`base` is the first version of an `installation`"),
        ('argv = ["{version}/run"], installation = "herma"', "choose another name"),
    ],
)
def test_a_launch_that_says_half_of_it_is_refused(launch: str, what: str) -> None:
    """A launch that says half of it is refused with what is missing."""
    with pytest.raises(ConfigError) as raised:
        parse_config(TABLE.format(launch=launch), "herma.toml")
    assert what in str(raised.value)
