#!/usr/bin/env python3
"""passthrough.py DIR SHARE METRICS CELLAR GET: a read-only volume at DIR through releases, while its files are
open. The test outside writes release N when SHARE/want has N, and then creates SHARE/done-N. Release N has
big, of LENGTH + N bytes, tool, a shell, and filler0 to filler5. Contents depend on the name and release."""
import hashlib, mmap, os, subprocess, sys, time

LENGTH = 20_000_000
FILLERS = 6


def contents(name, release):
    seed = hashlib.sha256(f"{name} {release}".encode()).digest()
    return (seed * (LENGTH // len(seed) + 1))[:LENGTH] + b"." * release


def make(directory, release):
    for name in ["big"] + [f"filler{number}" for number in range(FILLERS)]:
        with open(f"{directory}/{name}", "wb") as file:
            file.write(contents(name, release))
    with open("/bin/bash", "rb") as shell, open(f"{directory}/tool.new", "wb") as tool:
        tool.write(shell.read() + b"." * release)
    os.chmod(f"{directory}/tool.new", 0o755)
    os.rename(f"{directory}/tool.new", f"{directory}/tool")


def is_release(descriptor, release, what):
    want = contents("big", release)
    got = b"".join(os.pread(descriptor, 1 << 20, at) for at in range(0, len(want) + 1, 1 << 20))
    assert got == want, f"{what}: not release {release}, {len(got)} bytes"
    assert os.fstat(descriptor).st_size == len(want), f"{what}: {os.fstat(descriptor).st_size} bytes are reported"


def main():
    directory, share, metrics, cellar, get = sys.argv[1:]
    big = f"{directory}/big"

    def figure(name):
        said = subprocess.run([get, metrics], capture_output=True, text=True, check=True).stdout
        return int(next(line.split()[1] for line in said.splitlines() if line.startswith(name + " ")))

    def lent():
        return figure("cellar_passthrough_files_total")

    def reads():
        return figure('cellar_cache_hits_total{what="read"}') + figure('cellar_cache_misses_total{what="read"}')

    def opened(release):
        """A descriptor from which the kernel reads by itself."""
        is_release(first := os.open(big, os.O_RDONLY), release, "read")
        os.close(first)
        before, asked = lent(), reads()
        is_release(second := os.open(big, os.O_RDONLY), release, "opened again")
        assert lent() == before + 1, f"release {release} is not read by the kernel"
        assert reads() == asked + 1, f"{reads() - asked} reads of what the kernel reads by itself"
        return second

    def wants(release):
        with open(f"{share}/want.new", "w") as file:
            file.write(str(release))
        os.rename(f"{share}/want.new", f"{share}/want")
        end = time.monotonic() + 60
        while not os.path.exists(f"{share}/done-{release}"):
            assert time.monotonic() < end, f"release {release} is not written"
            time.sleep(0.05)
        end = time.monotonic() + 10
        while os.stat(big).st_size != LENGTH + release:
            assert time.monotonic() < end, f"release {release} is not seen"
            time.sleep(0.02)

    # A release while the old file is open.
    one = opened(1)
    map_one = mmap.mmap(one, 0, prot=mmap.PROT_READ)
    with open(f"{directory}/tool", "rb") as file:
        file.read()
    tool = subprocess.Popen([f"{directory}/tool", "-c", "read line; echo $((line * 7))"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    wants(2)
    is_release(one, 1, "open through a release")
    assert map_one[:] == contents("big", 1), "the mapping has other contents"
    with open(big, "rb") as file:
        is_release(file.fileno(), 2, "opened after a release")
    two = opened(2)
    assert os.fstat(one).st_ino == os.stat(big).st_ino == os.fstat(two).st_ino, "the file has another inode number"
    is_release(again := os.open(f"/proc/self/fd/{one}", os.O_RDONLY), 1, "the old one opened once more")
    assert tool.communicate(b"6\n")[0] == b"42\n" and tool.returncode == 0, "a program that ran through a release"
    # Two old files.
    wants(3)
    three = opened(3)
    for descriptor, release in [(one, 1), (again, 1), (two, 2), (three, 3)]:
        is_release(descriptor, release, "one of three releases")
    # The cache is dropped, and more is read than it can hold: open files stay.
    subprocess.run([cellar, "fs", "flush", big], check=True, stdout=subprocess.DEVNULL)
    with open(big, "rb") as file:
        is_release(file.fileno(), 3, "flushed")
    for number in range(FILLERS):
        with open(f"{directory}/filler{number}", "rb") as file:
            assert file.read() == contents(f"filler{number}", 3), f"filler{number}"
    for descriptor, release in [(one, 1), (again, 1), (two, 2), (three, 3)]:
        is_release(descriptor, release, "after more than the cache holds")
        os.close(descriptor)
    assert map_one[:] == contents("big", 1), "the mapping of what is closed"
    map_one.close()
    os.close(opened(3))
    end = time.monotonic() + 10
    while figure("cellar_passthrough_bytes"):
        assert time.monotonic() < end, "the kernel keeps what is closed"
        time.sleep(0.1)
    print(f"-- {lent()} files were read by the kernel alone")


if __name__ == "__main__":
    make(sys.argv[2], int(sys.argv[3])) if sys.argv[1] == "make" else main()
