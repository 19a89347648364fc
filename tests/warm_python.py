"""A Python that has torch already, for tests that start many: `warm_python.py SOCKET` serves it.

What stands for `python` in a test (`CLIENT`) passes its command, its environment and its three
streams on; a fork of this process becomes that command, and whoever waits for the client waits for
it. How Python itself starts (the environment of its libraries, the first import of torch, `spawn`)
cannot be tested in it.
"""

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys

CLIENT = """\
#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({path!r})
    socket.send_fds(server, [b"."], [0, 1, 2])
    order = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
    server.sendall(json.dumps(order).encode() + b"\\n")
    code = int(server.makefile().readline() or 1)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def _become(order, streams):
    """Become the command, as far as a Python can that has started already; return what it runs."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    if "UPSHIFT_CHILD" in os.environ:
        from upshift import child

        child.prepare(os.environ["UPSHIFT_CHILD"])
        for finder in list(sys.meta_path):
            if isinstance(finder, child.AfterImport) and finder._name in sys.modules:
                finder._follow()
    sys.argv = order["argv"]
    if sys.argv[0] == "-c":
        text = sys.argv.pop(1)
        return lambda: exec(compile(text, "<string>", "exec"), globals())
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    return lambda: runpy.run_path(sys.argv[0], run_name="__main__")


def _serve(listener):
    """Return what to run, in a fork for each client; return nothing in this process."""
    while True:
        connection, _ = listener.accept()
        if os.fork():  # the server
            connection.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listener.close()
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        order = json.loads(connection.makefile().readline())
        pid = os.fork()
        if not pid:
            connection.close()
            return _become(order, streams)
        for stream in streams:
            os.close(stream)
        if connection in select.select([connection, os.pidfd_open(pid)], [], [])[0]:
            os.kill(pid, signal.SIGKILL)  # nobody waits for it any more
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(f"{code}\n".encode())
        os._exit(0)


if __name__ == "__main__":
    import torch
    import torch._dynamo  # noqa: F401  # the first optimizer would import it

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("ready", flush=True)
        run = _serve(listener)
    run()
