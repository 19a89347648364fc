"""A view of the file system in which every write is thrown away (Linux mount namespaces).

Runs in the guard's child between `fork` and `exec`, so it uses only the standard library.
The process gets a private mount namespace, and over each tree of real files an overlay whose
upper layer is a folder of the trial. Reads go to the same files and page cache as before.

`fsync` costs nothing there, since the files will be thrown away anyway.

Not covered: `/run` except for disks mounted there (its sockets must stay real), `/sys`,
device files, and what another process does on our behalf (a Docker daemon, `systemd-run`, a network
service). In a user namespace `os.rename` of a folder that was there before gives EXDEV, as it does
between two disks (`shutil.move` and `mv` cope), as does a rename from one top-level folder to
another in any case. Files of other users show `nobody` as their owner, and those that only a group
may write can be changed only if they are in the working directory and small; otherwise that gives
EOVERFLOW.

Sources: https://docs.kernel.org/filesystems/overlayfs.html,
https://man7.org/linux/man-pages/man7/user_namespaces.7.html,
https://man7.org/linux/man-pages/man7/mount_namespaces.7.html
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from hasten.trials.isolation.mounts import (
    PSEUDO,
    RUN,
    SHM,
    Mount,
    stays_real,
    visible_mounts,
    within,
    within_any,
)
from hasten.trials.isolation.namespaces import SYS_ADMIN, enter, has_capability, mount

_RDONLY, _REMOUNT, _BIND, _REC = 1, 32, 4096, 16384
# Flags of statvfs and of mount(2) share these values; a remount in a user namespace that forgets
# one of them is refused, since they are locked there (mount_namespaces(7)).
_LOCKED_FLAGS = 2 | 4 | 8 | 1024 | 2048  # nosuid, nodev, noexec, noatime, nodiratime
_RELATIME_VFS, _RELATIME_MS = 4096, 1 << 21
_MOST_CHILDREN = 300
_MOST_FORESEEN, _LARGEST_FORESEEN_BYTES = 3000, 4 << 20


class Layers:
    """Where the upper layers are: folders on disk first, memory last.

    An upper layer must not be inside its own lower one (ELOOP), and not every file system can
    carry one (overlay, NFS and FUSE can't), hence several places that are tried in turn.
    """

    def __init__(self, places: list[str], ram: str, foreign: list[str]) -> None:
        # Descriptors, since the overlays hide these paths one after another.
        self.places = {path: _descriptor(path) for path in places}
        self.ram = _descriptor(ram)
        self.foreign = foreign
        self.count = 0

    def over(self, path: str) -> list[int]:
        """Return the places for the upper layer of the tree at `path`, best first."""
        return [*(d for p, d in self.places.items() if not within(p, path)), self.ram]

    def pair(self, place: int) -> tuple[int, int]:
        """Make an upper and a work folder; return their descriptors."""
        self.count += 1
        names = (f"{self.count}u", f"{self.count}w")
        for name in names:
            os.mkdir(name, 0o755, dir_fd=place)
        upper, work = (os.open(name, os.O_PATH | os.O_DIRECTORY, dir_fd=place) for name in names)
        return upper, work


def isolate(scratch: str, places: list[str], cwd: str, *, apart: bool) -> list[str]:
    """Put this process behind overlays; only `scratch` stays real.

    Args:
        scratch: a folder that both sides see and write, at the same path.
        places: existing folders for the upper layers; each tree takes the first outside itself.
        cwd: the script's working directory.
        apart: with a process namespace, too; the caller goes on in a fork of itself.

    Returns:
        One sentence for each tree that had to be made read-only instead.

    Raises:
        OSError: the kernel refuses, or the working directory would not be covered, or
            no longer be writable; then none of the mounts can be relied on.
    """
    foreign = [] if has_capability(SYS_ADMIN) else _foreign(cwd)
    writable = os.access(cwd, os.W_OK)
    enter(apart=apart)
    scratch_fd = _descriptor(scratch)
    ram = _make_ram(places[0])
    layers = Layers(places, ram, foreign)
    mounts = visible_mounts()
    if stays_real(cwd, mounts) and not within(cwd, SHM):
        raise OSError(errno.EPERM, "trials would write to the real", cwd)
    trees = _trees(mounts)
    sockets = _sockets(_volumes(trees, mounts))
    notes: list[str] = []
    covered: list[str] = []
    for path, descriptor in trees:
        notes += _cover(path, descriptor, mounts, layers, covered)
    _cover_memory(layers)
    for path, descriptor in sockets:
        with contextlib.suppress(OSError):  # its owner may have removed it meanwhile
            mount(_name(descriptor), path, "", _BIND)
            _read_only(path)  # it can still be connected to and written, but not changed
    if writable and not os.access(cwd, os.W_OK):
        raise OSError(errno.EROFS, "no overlay can lie over", cwd)
    os.makedirs(scratch, exist_ok=True)
    mount(_name(scratch_fd), scratch, "", _BIND)
    return notes + _read_only("/")


def cover_memory(scratch: str) -> None:
    """Give only shared memory an upper layer; the mount namespace has been entered already."""
    _cover_memory(Layers([], _make_ram(scratch), []))


def _make_ram(folder: str) -> str:
    """Mount a file system in memory, as large as that for shared memory; return where."""
    ram = os.path.join(folder, "ram")
    os.mkdir(ram, 0o700)
    size = os.statvfs(SHM).f_frsize * os.statvfs(SHM).f_blocks if os.path.isdir(SHM) else 0
    mount("tmpfs", ram, "tmpfs", 0, f"mode=0700,size={size}" if size else "mode=0700")
    return ram


def _in_user_namespace() -> bool:
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return file.read().split() != ["0", "0", "4294967295"]


def _trees(mounts: dict[str, Mount]) -> list[tuple[str, int]]:
    """Open every tree to cover before anything hides it, parents first."""
    with os.scandir("/") as entries:
        top = {e.path for e in entries if e.is_dir(follow_symlinks=False)}
    paths = top | mounts.keys()
    paths = {p for p in paths if p != "/" and not stays_real(p, mounts)}
    # What we cannot even open (another user's FUSE mount) we cannot write to either.
    found = _opened(sorted(paths, key=lambda p: p.split("/")))
    return [(path, descriptor) for path, descriptor in found if _answers(descriptor)]


def _answers(descriptor: int) -> bool:
    """Whether a file system still answers: not if the program behind its mount has died."""
    try:
        os.statvfs(_name(descriptor))
    except OSError:
        return False
    return True


def _volumes(trees: list[tuple[str, int]], mounts: dict[str, Mount]) -> list[str]:
    """Return the covered trees in /run that may hold sockets: volumes that containers share."""
    return [p for p, _ in trees if within(p, RUN) and not mounts[p].kind.startswith("fuse")]


def _foreign(cwd: str) -> list[str]:
    """Return files of other users that writes will foreseeably need, parents first.

    These are files that we may write though owner or group is not ours, and folders of others that
    lead to the working directory and our home. A user namespace cannot copy them up into an upper
    layer, since their owner has no id there (EOVERFLOW), so they are copied before. To be called
    before that namespace is entered, in which every other user is `nobody`.
    """
    leading = [path for place in (cwd, os.path.expanduser("~")) for path in _leading(place)]
    ahead = [*leading, "/var/tmp"]
    unseen = [cwd]
    while unseen and len(ahead) <= _MOST_FORESEEN:  # os.walk recurses before Python 3.12
        entries = _entries(unseen.pop(0))
        ahead += [entry.path for entry in entries]
        unseen += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [path for path in ahead[:_MOST_FORESEEN] if _is_foreign(path, path in leading)]


def _leading(place: str) -> list[str]:
    """Return the folders that lead to a place, and the place itself."""
    parts = os.path.realpath(place).split("/")
    return ["/".join(parts[:n]) for n in range(2, len(parts) + 1)]


def _is_foreign(path: str, leads: bool) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    small = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_FORESEEN_BYTES
    if not (small or stat.S_ISDIR(status.st_mode)) or not (leads or os.access(path, os.W_OK)):
        return False
    return (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid())


def _seed(upper: str, lower: str, names: list[str]) -> None:
    """Copy into an upper layer what the kernel could not, with the folders that lead there."""
    for name in names:
        parts = name.split("/")
        for n in range(1, len(parts) + 1):
            path = "/".join(parts[:n])
            target, source = os.path.join(upper, path), os.path.join(lower, path)
            if os.path.lexists(target):
                continue
            if os.path.isdir(source):
                os.mkdir(target)
            else:
                with open(source, "rb") as origin, open(target, "wb") as copy:
                    copy.write(origin.read())
            status = os.stat(source)
            _dress(target, source, status)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _sockets(volumes: list[str]) -> list[tuple[str, int]]:
    """Open the sockets and pipes in the temporary folders and in these volumes.

    A socket seen through an overlay has another inode, so that `connect` finds no listener;
    X11, CUDA MPS and agents keep theirs here.
    """
    found = []
    for root in ("/tmp", "/var/tmp", *volumes):
        for folder in [root, *_folders(root)]:
            for entry in _entries(folder):
                # The listing itself tells this; a status would cost a call for each file.
                plain = entry.is_symlink() or entry.is_dir() or entry.is_file()
                found += [] if plain else [entry.path]
    return _opened(found)


def _opened(paths: list[str]) -> list[tuple[str, int]]:
    """Open paths, except those that their owners have removed or keep from us."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append((path, _descriptor(path)))
    return found


def _folders(root: str) -> list[str]:
    return [e.path for e in _entries(root) if e.is_dir(follow_symlinks=False)][:_MOST_CHILDREN]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)[: 4 * _MOST_CHILDREN]
    except OSError:
        return []


def _cover(
    path: str, descriptor: int, mounts: dict[str, Mount], layers: Layers, covered: list[str]
) -> list[str]:
    """Lay an overlay over one tree, or the strictest thing that the kernel permits."""
    found = mounts.get(path)
    hidden = within_any(path, covered)
    if found and (found.kind in PSEUDO or found.read_only or not os.path.isdir(path)):
        if hidden:
            mount(_name(descriptor), path, "", _BIND)
        return [] if found.kind in PSEUDO or found.read_only else _read_only(path)
    if _overlaid(path, descriptor, layers.over(path), layers):
        covered.append(path)
        return []
    nested = any(within(other, path) and other != path for other in mounts)
    if hidden or not nested:
        return [f"{path} is read-only in trials." for _ in _read_only(path, descriptor)]
    # Mounts inherited by a user namespace are locked, and a tree that holds one can't be a lower
    # layer: what lies beneath could show. So its folders are covered one by one.
    # Through the descriptor, since the path may lie beneath a mount that is read-only by now.
    inside = _opened(_folders(_name(descriptor)))
    notes = _read_only(path, descriptor)
    for name, child_descriptor in inside:
        child = os.path.join(path, os.path.basename(name))
        if child not in mounts:
            notes += _cover(child, child_descriptor, mounts, layers, covered)
    return notes


def _cover_memory(layers: Layers) -> None:
    """Give shared memory an upper layer in memory: data sets kept there stay readable."""
    if not os.path.isdir(SHM) or not os.access(SHM, os.W_OK):
        return
    if not _overlaid(SHM, _descriptor(SHM), [layers.ram], layers):
        mount("tmpfs", SHM, "tmpfs", 0, "mode=1777")


def _overlaid(path: str, descriptor: int, places: list[int], layers: Layers) -> bool:
    extra = "userxattr" if _in_user_namespace() else "redirect_dir=on"
    lower = os.stat(_name(descriptor))
    for place in places:
        upper, work = layers.pair(place)
        try:
            _dress(_name(upper), _name(descriptor), lower)
            ours = [p for p in layers.foreign if within(p, path) and p != path]
            _seed(_name(upper), _name(descriptor), [p[len(path) + 1 :] for p in ours])
            layered = f"lowerdir={_name(descriptor)},upperdir={_name(upper)},workdir={_name(work)}"
            _mount_overlay(path, f"{layered},{extra}")
        except OSError:
            continue
        finally:
            os.close(upper)
            os.close(work)
        return True
    return False


def _mount_overlay(path: str, options: str) -> None:
    """Mount without crash safety: otherwise each unmount flushes the whole disk's caches.

    That took a fifth of a second per trial and disturbed the others; kernels before 5.10 leave
    no choice.
    """
    try:
        mount("overlay", path, "overlay", 0, f"{options},volatile")
    except OSError:
        mount("overlay", path, "overlay", 0, options)


def _dress(upper: str, lower: str, status: os.stat_result) -> None:
    """Give the upper folder, and thus the root of the overlay, the lower one's permissions."""
    mode = stat.S_IMODE(status.st_mode)
    try:
        os.chown(upper, status.st_uid, status.st_gid)
    except OSError:  # it will be ours, so our own rights become the owner's
        own = sum(bit for bit in (os.R_OK, os.W_OK, os.X_OK) if os.access(lower, bit))
        mode = mode & 0o1077 | own << 6
    os.chmod(upper, mode)


def _read_only(path: str, descriptor: int | None = None) -> list[str]:
    """Forbid all writes to one mount; say so if they would have been possible."""
    before = path if descriptor is None else _name(descriptor)
    writable = os.path.isdir(path) and os.access(before, os.W_OK)
    if descriptor is not None:
        mount(_name(descriptor), path, "", _BIND | _REC)
    now = os.statvfs(path).f_flag
    flags = now & _LOCKED_FLAGS | (_RELATIME_MS if now & _RELATIME_VFS else 0)
    mount("none", path, "", _REMOUNT | _BIND | _RDONLY | flags)
    if path == "/" or not writable:  # programs keep nothing directly in the root folder
        return []
    return [f"{path} itself is read-only in trials, its folders are not."]


def _descriptor(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_NOFOLLOW)


def _name(descriptor: int) -> str:
    # Needs no escaping (`,` and `:` split mount options) and still names a tree once it is hidden.
    return f"/proc/self/fd/{descriptor}"
