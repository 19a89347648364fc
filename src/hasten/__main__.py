"""`python -m hasten` is the same program as `hasten`."""

import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    with suppress(FileNotFoundError):  # the folder was removed: main says so
        if sys.path and sys.path[0] == os.getcwd():  # never import the user's modules as ours
            del sys.path[0]
    from hasten.cli import main

    main()
