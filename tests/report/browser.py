"""A real browser without a driver: Chromium, spoken to over two pipes."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from itertools import count

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
WATCHED = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
MOVE_PIPES = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(high[0], 3), os.dup2(high[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find():
    """Return the path of a browser that starts, None where there is none."""
    return next(filter(_starts, filter(None, map(shutil.which, NAMES))), None)


def _starts(program):
    """Tell a browser from a stub that would fetch one."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and b"Chrom" in done.stdout


class Browser:
    """One page after the other in one headless process.

    The protocol is that of the developer tools, https://chromedevtools.github.io/devtools-protocol:
    JSON that ends with a zero byte, read by the browser from descriptor 3, written to 4.
    """

    def __init__(self, program, folder):
        asked, answers = os.pipe(), os.pipe()
        self.write, self.read = asked[1], answers[0]
        self.process = subprocess.Popen(
            [
                sys.executable, "-c", MOVE_PIPES, str(asked[0]), str(answers[1]),
                program, *FLAGS, f"--user-data-dir={folder}", "about:blank",
            ],
            pass_fds=(asked[0], answers[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(asked[0])
        os.close(answers[1])
        self.buffer, self.numbers, self.session, self.events = b"", count(1), None, []
        target = next(
            one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "page"
        )
        where = {"targetId": target["targetId"], "flatten": True}
        self.session = self.ask("Target.attachToTarget", **where)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self):
        """End the browser."""
        os.close(self.write)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read)

    def open(self, path, *, width=1200, height=900, scheme="light", media=""):
        """Show a file and wait until it is there."""
        phone = {"deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, **phone)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        self.wait("Page.loadEventFired")

    def run(self, code):
        """Return the value of a JavaScript expression."""
        answer = self.ask("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key):
        """Press and release a key, such as Tab."""
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                     windowsVirtualKeyCode={"Tab": 9, "Enter": 13}[key])  # fmt: skip

    def picture(self, *, whole=False):
        """Return a PNG of what is seen, or of the whole page."""
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def complaints(self):
        """Return what the page wrote to the console."""
        return [event for event in self.events if event["method"] in WATCHED]

    def requests(self):
        """Return the addresses that the page asked for."""
        sent = [one for one in self.events if one["method"] == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in sent]

    def ask(self, method, **parameters):
        """Send a command and return its result."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def wait(self, method):
        """Wait for an event."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive())

    def receive(self, patience_s=60.0):
        """Return the next message."""
        until = time.monotonic() + patience_s
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"the browser said nothing for {patience_s} s"
            chunk = os.read(self.read, 1 << 20)
            assert chunk, "the browser has gone"
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)
