"""A Python that has torch already, for tests that start many: `warm_python.py SOCKET` serves it.

What stands for `python` in a test (`CLIENT`) passes its command, its environment and its three
streams on; a fork of this process becomes that command, and whoever waits for the client waits for
it. How Python itself starts (the environment of its libraries, the first import of torch, `spawn`)
cannot be tested in it.
"""

import ast
import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FunctionType

# In the environment of a command: what all have in common stays left out by the collector, so that
# nothing that looks through all objects copies and walks it again.
FROZEN = "WARM_PYTHON_FROZEN"
# It starts some times for each test, so it imports little.
CLIENT = """\
#!{python} -SE
import _socket, os, sys
server = _socket.socket(_socket.AF_UNIX)
server.connect({path!r})
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
server.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
order = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": {{**os.environ, **{told!r}}}}}
server.sendall(ascii(order).encode() + b"\\n")
code = int(server.recv(16) or 1)
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
    folders = filter(None, order["env"].get("PYTHONPATH", "").split(os.pathsep))
    starts = [Path(folder, "sitecustomize.py") for folder in folders]
    for start in starts[1:] if "HASTEN_CHILD" in os.environ else starts:  # ours stands first
        if start.exists():
            runpy.run_path(start)
    if (view := sys.modules.get("hasten.loader.view")) is not None:
        view._FORKED.clear()  # the script begins here: this is no fork of it
    if (device := sys.modules.get("laggard")) is not None:  # see accelerator/
        device.read_environment()
    if "HASTEN_CHILD" in os.environ:
        _prepare()
    sys.argv = order["argv"]
    if sys.argv[0] == "-c":
        text = sys.argv.pop(1)
        return FunctionType(compile(text, "<string>", "exec"), globals())
    script = os.path.abspath(sys.argv[0])
    sys.path.insert(0, os.path.dirname(script))
    return lambda: runpy.run_path(script, run_name="__main__")


def _prepare():
    """Come in as hasten does where Python starts, with torch there already."""
    from hasten import child

    child.prepare(os.environ["HASTEN_CHILD"])


def _end_at_once(run):
    """Run the command and the exit routines; what torch takes to be torn down is spared."""
    code = 0
    try:
        run()
    except KeyboardInterrupt:
        raise
    except SystemExit as asked:
        code = 0 if asked.code is None else asked.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(code & 0xFF)


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
        order = ast.literal_eval(connection.makefile().readline())
        pid = os.fork()
        if not pid:
            connection.close()
            if FROZEN not in order["env"]:
                gc.unfreeze()
            return _become(order, streams)
        for stream in streams:
            os.close(stream)
        if connection in select.select([connection, os.pidfd_open(pid)], [], [])[0]:
            os.kill(pid, signal.SIGKILL)  # nobody waits for it any more
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(f"{code}\n".encode())
        os._exit(0)


@contextlib.contextmanager
def served(env, *modules, frozen=False):
    """Serve Pythons in this environment that have these modules already, and have made these calls.

    Args:
        env: the environment.
        modules: their names; `module:function` calls a function, too.
        frozen: what they have in common stays left out by the collector.

    Yields:
        the path of the program that stands for `python`.
    """
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        client = Path(folder) / "python"
        client.write_text(
            CLIENT.format(
                python=sys.executable, path=f"{folder}/s", told={FROZEN: "1"} if frozen else {}
            )
        )
        client.chmod(0o700)
        installed = Path(folder) / "site-packages"  # it is no code of the script under test
        installed.mkdir()
        server = shutil.copy(__file__, installed)
        process = subprocess.Popen(
            [sys.executable, server, f"{folder}/s", *modules], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True,
        )  # fmt: skip
        try:
            assert process.stdout.readline() == b"ready\n"
            yield str(client)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the tests
    for name in sys.argv[2:]:
        module, _, call = name.partition(":")
        loaded = importlib.import_module(module)
        if call:
            getattr(loaded, call)()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("ready", flush=True)
        run = _serve(listener)
    _end_at_once(run)
