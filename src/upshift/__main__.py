"""`python -m upshift` is the same program as `upshift`."""

from upshift.cli import main

if __name__ == "__main__":
    main()
