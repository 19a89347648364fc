"""Make an unmodified PyTorch training script faster, and prove it."""

__version__ = "0.1.0"


def load_ipython_extension(shell: object) -> None:
    """Give a notebook its `%%hasten`: IPython calls this on `%load_ext hasten`."""
    from hasten.notebook import load

    load(shell)


def unload_ipython_extension(shell: object) -> None:
    """Take it back: IPython calls this on `%unload_ext hasten`."""
    from hasten.notebook import unload

    unload(shell)
