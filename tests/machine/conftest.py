"""Machines as folders: a builder that writes the files a kernel would show."""

import pytest


class FakeRoot:
    """A folder that looks like / to whoever reads /proc and /sys beneath it."""

    def __init__(self, path):
        self.path = path

    def write(self, name, text):
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def cpus(self, *cores, sockets=1, flags="fpu avx2", model="Test CPU"):
        """Write a topology: one tuple of logical ids per core, cores dealt to sockets in order."""
        ids = sorted(cpu for core in cores for cpu in core)
        self.write("sys/devices/system/cpu/online", ",".join(map(str, ids)))
        for index, core in enumerate(cores):
            for cpu in core:
                folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
                self.write(f"{folder}/thread_siblings_list", ",".join(map(str, core)))
                self.write(f"{folder}/physical_package_id", index * sockets // len(cores))
                # Repeats between sockets, as on real servers: nobody may count by it.
                self.write(f"{folder}/core_id", index % (len(cores) // sockets))
        paragraphs = [f"processor\t: {i}\nmodel name\t: {model}\nflags\t\t: {flags}" for i in ids]
        self.write("proc/cpuinfo", "\n\n".join(paragraphs))

    def memory(self, *, total_kib, available_kib):
        self.write(
            "proc/meminfo",
            f"MemTotal:  {total_kib} kB\nMemFree:  1 kB\nMemAvailable:  {available_kib} kB",
        )

    def cgroup2(self, own, files):
        """Write a v2 tree: `files` maps a path below the mount to its text."""
        self.write("proc/self/cgroup", f"0::{own}")
        for name, text in files.items():
            self.write(f"sys/fs/cgroup/{name}", text)

    def cgroup1(self, own, files):
        """Write a v1 tree with cpu and memory hierarchies below /sys/fs/cgroup."""
        self.write("proc/self/cgroup", f"4:memory:{own}\n2:cpu,cpuacct:{own}\n1:name=systemd:/")
        for name, text in files.items():
            self.write(f"sys/fs/cgroup/{name}", text)


@pytest.fixture
def fake(tmp_path):
    return FakeRoot(tmp_path)


@pytest.fixture
def laptop(fake):
    """Four cores, eight threads; siblings four apart, as most firmware numbers them."""
    fake.cpus(*((core, core + 4) for core in range(4)), flags="fpu avx2 avx512f amx_bf16")
    fake.memory(total_kib=16 * 2**20, available_kib=12 * 2**20)
    return fake


@pytest.fixture
def server(fake):
    """Two sockets of eight cores, two threads each."""
    fake.cpus(*((core, core + 16) for core in range(16)), sockets=2)
    fake.memory(total_kib=256 * 2**20, available_kib=250 * 2**20)
    return fake
