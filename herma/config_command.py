"""`herma config check FILE`: is the file right, without starting anything?

Owns the summary that a person reads. Secrets are looked up, never shown.
"""

import os
from pathlib import Path

from config import Config, load_config, provider_api_key
from herma.preflight import missing_models, unserved_models


def check(path: Path) -> int:
    """Print what the file sets up. Raises `ConfigError` for the first thing that is wrong."""
    config = load_config(path)
    for name, provider in config.providers.items():
        provider_api_key(name, provider, os.environ)
    print(_summary(path, config))
    # Not mistakes by themselves: workers may live on other hosts, or be set up elsewhere.
    for problem in (*missing_models(config), *unserved_models(config)):
        print(f"  note      {problem}")
    return 0


def _summary(path: Path, config: Config) -> str:
    gateway = config.gateway
    lines = [f"{path}: ok", f"  gateway   http://{gateway.host}:{gateway.port}/v1"]
    for model in config.models:
        chain = ", ".join(f"{target.provider}/{target.model}" for target in model.fallback)
        names = " ".join((model.name, *model.aliases))
        lines.append(f"  model     {names} ({model.profile})" + (f" -> {chain}" if chain else ""))
    for worker in config.workers:
        limits = f"max_seqs {worker.max_seqs}, token_budget {worker.token_budget}"
        lines.append(f"  worker    {worker.name}: {worker.model} as {worker.serves} ({limits})")
    lines += [f"  provider  {name}: {table.base_url}" for name, table in config.providers.items()]
    lines += [f"  key       {key.name}{' (admin)' if key.admin else ''}" for key in config.keys]
    return "\n".join(lines)
