"""A Linux with any sockets, memory nodes and SMT threads, emulated by qemu, in which tests run commands as root.

It takes qemu-system-x86_64 (from 7.2 on it emulates AVX2) and apt-get, which downloads Debian's kernel and busybox
once; they are unpacked in a cache folder and not installed. The guest sees the host's files below a RAM disk, so that
what it writes is lost, except in one folder. It has no network. A boot takes some ten seconds, and code there runs tens
of times slower than here. All nodes are as near as each other: nothing in it is about speed.
"""

from __future__ import annotations

import lzma
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("IPEX_ASSIST_ENVS") or Path.home() / ".cache" / "ipex-assist-ci") / "emulated"
# Of Debian's kernel; what it has built in is not among its files.
MODULES = ["virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "fscache", "netfs"]
MODULES += ["9pnet", "9pnet_virtio", "9p", "overlay"]
ENDED = "exit-code"

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /host /ram /tree
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for turn in 1 2 3 4; do for module in {modules}; do insmod /modules/$module; done; done 2> /dev/null # some need others
mount -t 9p -o ro,cache=loose,trans=virtio,version=9p2000.L,msize=1048576 host /host
mount -t tmpfs -o size=80% ram /ram
mkdir /ram/upper /ram/work
mount -t overlay -o lowerdir=/host,upperdir=/ram/upper,workdir=/ram/work root /tree
for each in proc sys dev; do mount --bind /$each /tree/$each; done
mkdir -p /tree/dev/shm /tree/dev/pts
mount -t tmpfs shm /tree/dev/shm; mount -t devpts pts /tree/dev/pts
mount -t cgroup2 cgroup /tree/sys/fs/cgroup
mount -t 9p -o cache=none,trans=virtio,version=9p2000.L,msize=1048576 shared /tree{folder}
ifconfig lo 127.0.0.1 up
chroot /tree /bin/bash {folder}/commands > /tree{folder}/output 2>&1 < /dev/null
echo $? > /tree{folder}/{ended}
sync
poweroff -f
"""


def why_none() -> str | None:
    """Why there can be no emulated machine here; None where there can."""
    for program, package in (("qemu-system-x86_64", "qemu-system-x86"), ("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        if not shutil.which(program):
            return f"an emulated machine needs {program} ({package})"
    if os.geteuid() != 0:
        return "an emulated machine reads the host's files, for which this process would have to be root's"
    return None


@dataclass(frozen=True)
class EmulatedMachine:
    """memory: MiB of each node that has CPUs, cores being dealt out to them in order; memory_only: of further nodes."""

    memory: Sequence[int]
    memory_only: Sequence[int] = ()
    sockets: int = 2
    cores: int = 2
    threads: int = 1

    def run(self, folder: Path, commands: str, seconds: float) -> str:
        """Boot it, run a bash script with `folder` as the folder that it shares, and return what that printed.

        AssertionError with the end of the output where the script fails, or has not ended after so many seconds.
        """
        exports = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
        (folder / "commands").write_text("\n".join([*lines, f"cd {shlex.quote(str(folder))}", commands, ""]))
        kernel, initrd = _image(folder)
        arguments = ["qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot", "-m", f"{self._total}M"]
        arguments += ["-machine", "q35,hpet=off", "-accel", "tcg,thread=multi", "-cpu", "max,vendor=GenuineIntel"]
        arguments += ["-kernel", str(kernel), "-initrd", str(initrd), *self._topology()]
        arguments += ["-append", "console=ttyS0 quiet rdinit=/init mitigations=off tsc=reliable panic=-1"]
        arguments += ["-serial", f"file:{folder / 'console'}"]
        for tag, path, how in (("host", "/", ",readonly=on"), ("shared", str(folder), "")):
            arguments += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{how}"]
            arguments += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        try:
            done = subprocess.run(["nice", "-n", "19", *arguments], capture_output=True, text=True, timeout=seconds)
            said = done.stderr
        except subprocess.TimeoutExpired:
            said = f"it has not ended after {seconds:g} s"
        output = _text(folder / "output")
        code = _text(folder / ENDED).strip()
        assert code == "0", "\n".join(
            [f"exit code {code or 'none'}; {said}", output[-6000:], _text(folder / "console")[-3000:]]
        )
        return output

    @property
    def _total(self) -> int:
        return sum(self.memory) + sum(self.memory_only)

    def _topology(self) -> list[str]:
        every = self.sockets * self.cores
        smp = f"{every * self.threads},sockets={self.sockets},cores={self.cores},threads={self.threads}"
        made = ["-smp", smp]
        sizes = [*self.memory, *self.memory_only]
        for node, size in enumerate(sizes):
            made += ["-object", f"memory-backend-ram,id=ram{node},size={size}M"] if size else []
            made += ["-numa", f"node,nodeid={node}" + (f",memdev=ram{node}" if size else "")]
        for core in range(every):
            socket, within = divmod(core, self.cores)
            node = core * len(self.memory) // every
            for thread in range(self.threads):
                place = f"node-id={node},socket-id={socket},core-id={within},thread-id={thread}"
                made += ["-numa", f"cpu,{place}"]
        for one in range(len(sizes)):
            for other in range(one + 1, len(sizes)):
                made += ["-numa", f"dist,src={one},dst={other},val=21"]
        return made


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _image(folder: Path) -> tuple[Path, Path]:
    """The kernel, and an initial RAM disk that mounts the host's files and runs `folder`/commands."""
    try:
        known = next(CACHE.glob("linux-image-*-amd64"), None)
        name = (
            known.name
            if known
            else _output("apt-cache", "depends", "linux-image-amd64").split("Depends: ")[1].split()[0]
        )
        kernel, busybox = _unpacked(name), _unpacked("busybox-static") / "bin" / "busybox"
    except (IndexError, subprocess.SubprocessError) as error:  # no Debian, or no network
        pytest.skip(f"apt-get gives no linux-image-amd64 and busybox-static for an emulated machine: {error}")
    tree = folder / "initrd"
    (tree / "modules").mkdir(parents=True)
    (tree / "bin").mkdir()
    shutil.copy(busybox, tree / "bin" / "busybox")
    names = []
    for module in MODULES:
        for found in kernel.glob(f"**/{module}.ko*"):
            content = found.read_bytes()
            (tree / "modules" / f"{module}.ko").write_bytes(
                lzma.decompress(content) if found.suffix == ".xz" else content
            )
            names.append(f"{module}.ko")
    init = tree / "init"
    init.write_text(INIT.format(modules=" ".join(names), folder=folder, ended=ENDED))
    init.chmod(0o755)
    image = folder / "initrd.cpio"
    listed = "\0".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*"))).encode()
    with image.open("wb") as file:
        subprocess.run([busybox, "cpio", "-o", "-H", "newc", "-0"], cwd=tree, input=listed, stdout=file, check=True)
    return next((kernel / "boot").glob("vmlinuz-*")), image


def _unpacked(package: str) -> Path:
    """The files of a Debian package."""
    folder = CACHE / package
    if not folder.exists():
        work = CACHE / f"{package}.{os.getpid()}"
        work.mkdir(parents=True)
        subprocess.run(
            ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package], cwd=work, check=True, timeout=300
        )
        (archive,) = work.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, work / "tree"], check=True)
        (work / "tree").rename(folder)
        shutil.rmtree(work)
    return folder


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
