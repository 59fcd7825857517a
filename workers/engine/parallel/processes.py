"""The processes of an engine's other ranks on this host.

Owns their start, for which this process needs no torch: they import it while this one does, which
is most of a start. Must not know what they are told.
"""

import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import final

from config import WorkerConfig
from housekeeping.own_code import module_argv
from workers.engine.parallel.calls import BeginRank, CallChannel


@final
class RankProcesses:
    """All ranks but the first, which meet it in `folder`. Rank 1 is the first of `all`."""

    def __init__(self, config: WorkerConfig) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="herma-ranks-"))
        self.all: list[subprocess.Popen[bytes]] = []
        self.channels: list[CallChannel] = []
        for index in range(1, config.tensor_parallel):
            ours, theirs = socket.socketpair()
            command = module_argv("workers.engine.parallel")
            arguments = ["--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
            process = subprocess.Popen([*command, *arguments], pass_fds=[theirs.fileno()])
            self.all.append(process)
            theirs.close()
            channel = CallChannel(ours)
            channel.send(BeginRank(config, index, str(self.folder)))
            self.channels.append(channel)
