"""Make an unmodified PyTorch training script faster, and prove it."""

TYPE_CHECKING = False  # importing `typing` would load it before the script does
if TYPE_CHECKING:
    from hasten.api import load_plan, profile, tune

__all__ = ["load_plan", "profile", "tune"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import an API function on first access: the scripts that we run need none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hasten import api

    return getattr(api, name)


def load_ipython_extension(shell: object) -> None:
    """Register the `%%hasten` magic: IPython calls this on `%load_ext hasten`."""
    from hasten.notebook import load

    load(shell)


def unload_ipython_extension(shell: object) -> None:
    """Unregister the magic: IPython calls this on `%unload_ext hasten`."""
    from hasten.notebook import unload

    unload(shell)
