"""A port for each trial: the ranks of two trials that live at once must not meet.

torchrun takes the port where its command names none, and any free one in place of the endpoint
of a rendezvous. Where a script starts its ranks by itself, the port that it has written down is
replaced.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
from typing import Any

KEY = "PET_MASTER_PORT"  # torchrun reads its options from variables of this form
LAUNCHER = "torch.distributed.launcher.api"
_PORT = re.compile(r"(?<=:)\d+(?=$|[/?])")


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def replace_ports() -> None:
    """Let ranks of this trial meet at its own port, wherever the script wants them to."""
    from torch import distributed

    port = os.environ.get(KEY)
    if port is None or not distributed.is_available():
        return
    original = distributed.init_process_group

    @functools.wraps(original)
    def initialize(backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any) -> Any:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # else torchrun has the port
            os.environ["MASTER_PORT"] = port
            if isinstance(init_method, str) and init_method.startswith("tcp://"):
                init_method = _PORT.sub(port, init_method)
        return original(backend, init_method, *args, **kwargs)

    distributed.init_process_group = initialize


def replace_launches() -> None:
    """Let torchrun in this trial await its ranks where no other trial does, at any free port.

    It starts none again that have failed: nobody would follow them, or learn of what failed.
    """
    launcher: Any = sys.modules[LAUNCHER]
    original = launcher.launch_agent

    @functools.wraps(original)
    def launch(config: Any, *args: Any, **kwargs: Any) -> Any:
        config.max_restarts = 0
        by_port = config.rdzv_backend == "c10d" and config.rdzv_configs.get("store_type") != "file"
        if by_port and config.max_nodes == 1:
            config.rdzv_endpoint = "localhost:0"
        return original(config, *args, **kwargs)

    launcher.launch_agent = launch
