"""`python -m upshift` is the same program as `upshift`."""

import os
import sys

if __name__ == "__main__":
    if sys.path and sys.path[0] == os.getcwd():  # the user's modules there are none of ours
        del sys.path[0]
    from upshift.cli import main

    main()
