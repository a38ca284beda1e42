"""Machines of a session: a network, mount and root directory of its own for each, on one Ethernet.

The root directory is a copy-on-write view of this machine's. So a session may change any file. The disks of the
servers are directories on a real disk. The process namespace is the caller's.
"""
import os
import re
import select
import signal
import socket
import subprocess
import time
from pathlib import Path

# On a disk, because servers warn of partitions in memory.
DISKS = ("/var/lib/cellar", "/srv", "/home", "/root", "/var/cache")
USERS = {"alice": 1001, "ann": 1002}
DOMAIN = "example.org"
# The longest time of one command, in seconds.
PATIENCE = 120
NEW_ROOT = """
set -e
mount -t tmpfs -o mode=755 tmpfs "$1/tmp"
mkdir "$1/tmp/upper" "$1/tmp/work" "$1/tmp/root"
r=$1/tmp/root
mount -t overlay -o "lowerdir=/,upperdir=$1/tmp/upper,workdir=$1/tmp/work" overlay "$r"
for d in dev proc sys; do mount --rbind "/$d" "$r/$d"; done
mknod -m 666 "$1/tmp/fuse" c 10 229 && mount --bind "$1/tmp/fuse" "$r/dev/fuse" || true
mkdir -p "$r/usr/src/cellar" "$r/afs" "$r/mnt"
mount --bind "$2" "$r/usr/src/cellar"
for p in cellar systemctl scp; do rm -f "$r/usr/bin/$p"; touch "$r/usr/bin/$p"; done
mount --bind "$3" "$r/usr/bin/cellar"
for p in systemctl scp; do mount --bind "$2/interop/documents/bin/$p" "$r/usr/bin/$p"; done
rm -rf "$r/etc/cellar" "$r/etc/openafs" "$r/etc/krb5.conf" "$r/etc/krb5kdc"
for d in {disks}; do mkdir -p "$r$d" "$1/disks$d"; mount --bind "$1/disks$d" "$r$d"; done
mount -t tmpfs tmpfs "$r/run"
mkdir "$r/run/session"
mount --bind "$1/../shared" "$r/run/session"
mount -t tmpfs -o mode=1777 tmpfs "$r/tmp"
mkdir "$r/old"
cd "$r"
pivot_root . old
umount -l /old
rmdir /old
ip link set lo up
exec sleep infinity
"""


def run(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, text=True, **options)


class Daemon:
    """A program that serves until it gets a signal."""

    def __init__(self, machine, log, pid, command, notify):
        self.machine, self.log, self.pid, self.command = machine, log, pid, command
        # Its messages about a stop go there too.
        self.notify = notify
        self.seen = 0

    def output(self):
        text = self.log.read_text(errors="replace")[self.seen:]
        self.seen += len(text)
        return text

    def ended(self):
        try:
            return "Z" in re.search(r"^State:\s*(\S)", Path(f"/proc/{self.pid}/status").read_text(), re.M)[1]
        except OSError:
            return True

    def stop(self):
        os.kill(self.pid, signal.SIGINT)
        until(self.ended, f"{self.command} does not stop")


def until(condition, complaint, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(complaint)
        time.sleep(0.02)


class Shell:
    """A user's shell on a machine. It lasts for the session, so variables and directories stay."""

    def __init__(self, machine, user):
        self.machine, self.user = machine, user
        home = "/root" if user == "root" else f"/home/{user}"
        become = [] if user == "root" else ["setpriv", f"--reuid={USERS[user]}", f"--regid={USERS[user]}", "--clear-groups"]
        environment = {
            "HOME": home, "USER": user, "LOGNAME": user, "LANG": "C.UTF-8",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        self.process = subprocess.Popen(
            ["nsenter", "-t", str(machine.process.pid), "-m", "-n", "-u", "-r", *become, "bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )
        self.run(f"cd {home}; umask 022")

    def run(self, text, typed=""):
        """The output and the exit status."""
        mark = f"end-{os.urandom(6).hex()}"
        typed_file = self.machine.world.shared / mark
        typed_file.write_text(typed)
        # A command of several lines, or with a comment at its end, stays one.
        script = f"{{ {text}\n}} </run/session/{mark}\nprintf '%s %d\\n' {mark} $?\n"
        self.process.stdin.write(script.encode())
        self.process.stdin.flush()
        output, end = b"", time.monotonic() + PATIENCE
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not piece:
                why = "no end" if not ready else "the shell has ended"
                raise TimeoutError(f"{text}: {why}; the output so far:\n{output.decode(errors='replace')}")
            output += piece
            found = re.search(mark.encode() + rb" (\d+)\n$", output)
            if found:
                typed_file.unlink()
                return output[: found.start()].decode(errors="replace"), int(found[1])

    def start(self, text):
        """Starts a daemon. Returns it when it serves; returns the output and the status of one that ends before."""
        world = self.machine.world
        world.started += 1
        name = f"d{world.started}"
        place, log = world.shared / name, world.shared / f"{name}.log"
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(str(place))
        place.chmod(0o777)
        log.touch()
        log.chmod(0o666)
        self.run(f"export NOTIFY_SOCKET=/run/session/{name}")
        said, _ = self.run(f"(exec {text}\n) </dev/null >>/run/session/{name}.log 2>&1 &\n echo $!; unset NOTIFY_SOCKET")
        daemon = Daemon(self.machine, log, int(said.split()[-1]), text, notify)
        world.daemons.append(daemon)
        end = time.monotonic() + PATIENCE
        notify.settimeout(0.1)
        while time.monotonic() < end:
            try:
                if b"READY=1" in notify.recv(4096):
                    # Its banner may follow.
                    time.sleep(0.3)
                    return daemon, None
            except TimeoutError:
                if daemon.ended():
                    world.daemons.remove(daemon)
                    _, status = self.run(f"wait {daemon.pid}")
                    return None, (daemon.output(), status)
        raise TimeoutError(f"{text}: does not serve; {daemon.output()}")


class Machine:
    def __init__(self, world, name, addresses):
        self.world, self.name, self.addresses = world, name, addresses
        self.shells = {}
        self.place = world.place / name
        for part in ("tmp", "disks"):
            (self.place / part).mkdir(parents=True)
        self.boot()

    def boot(self):
        script = NEW_ROOT.replace("{disks}", " ".join(DISKS))
        self.process = subprocess.Popen(
            ["unshare", "-m", "-n", "-u", "bash", "-c", script, "machine", str(self.place), str(self.world.sources), str(self.world.program)],
            stderr=subprocess.PIPE,
        )
        until(lambda: self.process.poll() is not None or b"sleep" in Path(f"/proc/{self.process.pid}/cmdline").read_bytes().split(b"\0")[0],
              f"{self.name} does not start")
        if self.process.poll() is not None:
            raise OSError(f"machine {self.name}: {self.process.stderr.read().decode()}")
        self.world.shared.joinpath(f"{self.name}.pid").write_text(str(self.process.pid))
        outer = f"v-{self.name}"
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", str(self.process.pid))
        run("ip", "link", "set", outer, "master", "br0", "up")
        for address in self.addresses:
            self.root(f"ip addr add {address}/24 dev eth0")
        self.root("ip link set eth0 up; mkdir -p /run/session/backup; ln -sfn /run/session/backup /backup")
        self.root(f"hostname {self.name} 2>/dev/null; echo nameserver 127.0.0.1 >/etc/resolv.conf; chmod 700 /root; chmod 711 /var/lib/cellar")
        for user, uid in USERS.items():
            self.root(f"sed -i '/^{user}:/d' /etc/passwd; echo {user}:x:{uid}:{uid}::/home/{user}:/bin/bash >>/etc/passwd;"
                      f" install -d -o {uid} -g {uid} /home/{user}")

    def root(self, text):
        output, status = self.shell("root").run(text)
        if status:
            raise OSError(f"{self.name}: {text}: {output}")
        return output

    def shell(self, user):
        if user not in self.shells:
            self.shells[user] = Shell(self, user)
        return self.shells[user]

    def lose(self):
        """The machine ends as in a fire, and another one with empty disks has its name."""
        for process in Path("/proc").iterdir():
            try:
                same = os.readlink(process / "ns/net") == os.readlink(f"/proc/{self.process.pid}/ns/net")
                if process.name.isdigit() and same and int(process.name) != self.process.pid:
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                pass
        self.process.kill()
        self.process.wait()
        subprocess.run(["ip", "link", "del", f"v-{self.name}"], check=False, capture_output=True)
        self.shells = {}
        self.place = self.place.with_name(self.place.name + "-new")
        for part in ("tmp", "disks"):
            (self.place / part).mkdir(parents=True)
        self.boot()
        self.world.name_all()


class World:
    def __init__(self, place, sources, program):
        self.place, self.sources, self.program = place, sources, program
        self.machines, self.daemons, self.started = {}, [], 0
        self.shared = place / "shared"
        self.shared.mkdir(mode=0o777)
        self.shared.chmod(0o777)
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0", "stp_state", "0")
        run("ip", "link", "set", "br0", "up")

    def add(self, name, addresses):
        self.machines[name] = Machine(self, name, addresses)
        self.name_all()

    def name_all(self):
        lines = ["127.0.0.1 localhost"]
        lines += [f"{m.addresses[0]} {m.name}.{DOMAIN} {m.name}" for m in self.machines.values() if m.addresses]
        for machine in self.machines.values():
            machine.root("printf '%s\\n' " + " ".join(f"'{line}'" for line in lines) + " >/etc/hosts")

    def machine(self, name):
        if not self.machines:
            self.add("ws", ["192.0.2.10"])
        return self.machines[name] if name else next(iter(self.machines.values()))
