"""The data engine under the script's own DataLoader: same samples, same order."""

from upshift.loader.switchboard import Switchboard

__all__ = ["Switchboard"]
