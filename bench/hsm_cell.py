"""A cell with two devices and an archive, for the measurements of hierarchical storage."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(HERE)
ADDRESS = "127.0.0.1"
TOP = "/afs/test.cell/data"
FIRST_PORT = 7101


def die(message):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}")


def alone():
    """Runs the program again in a network namespace of its own. Needs root."""
    if os.geteuid() != 0:
        die("needs root, for a network namespace of its own")
    if os.environ.get("CELLAR_BENCH_INSIDE") != "1":
        os.environ["CELLAR_BENCH_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "-n", sys.executable, os.path.realpath(sys.argv[0]), *sys.argv[1:]])
    run("ip", "link", "set", "lo", "up")


def program():
    """The program that is measured: $CELLAR, or that of the profile `dist`."""
    cellar = os.environ.get("CELLAR")
    if not cellar:
        subprocess.run(["cargo", "build", "--profile", "dist", "-p", "cellar"], cwd=ROOT, check=True)
        cellar = f"{ROOT}/target/dist/cellar"
    return os.path.realpath(cellar)


def run(*words, seconds=1800, **more):
    done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words[-12:])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Cell:
    """The processes by name: `cell` (databases and file server), `device1` and `device2`, `device3` (the archive)."""

    def __init__(self, work_in, cellar):
        self.work = tempfile.mkdtemp(prefix="bench-hsm-", dir=work_in)
        self.cellar, self.processes = cellar, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in reversed(list(self.processes)):
            self.stop(name)
        shutil.rmtree(self.work, ignore_errors=True)

    def spawn(self, name, *words, **more):
        log = open(f"{self.work}/{name}.log", "a")
        self.processes[name] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more)

    def stop(self, name):
        process = self.processes.pop(name)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()

    def memory(self, name):
        """Resident memory of a process now, in MB."""
        with open(f"/proc/{self.processes[name].pid}/status") as file:
            resident = next(line for line in file if line.startswith("VmRSS:"))
        return int(resident.split()[1]) * 1024 / 1e6

    def cpu(self, name):
        """Processor time of a process until now, in seconds."""
        with open(f"/proc/{self.processes[name].pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def own(self, *words, seconds=1800):
        return run(self.cellar, *words, seconds=seconds, env={**os.environ, "CELLAR_DIR": f"{self.work}/cell"})

    def until(self, what, done):
        for _ in range(300):
            try:
                if done():
                    return
            except RuntimeError:
                pass
            time.sleep(0.2)
        die(f"{what} takes too long; the logs were in {self.work}")

    def device(self, number, name, *more):
        self.own("osd", "create", name, ADDRESS, "-port", str(FIRST_PORT + number), *more)
        listed = json.loads(self.own("osd", "list", "-json"))
        return next(str(row["id"]) for row in listed if row["name"] == name)

    def serve(self, number, device, *more):
        self.spawn(f"device{number}", self.cellar, "osd", "serve", "--dir", f"{self.work}/device{number}", "--id", device,
                   "--join", f"{self.work}/cell/server-etc", "--bind", ADDRESS, "--port", str(FIRST_PORT + number), *more)

    def start(self):
        """Starts the process of databases and file server."""
        self.spawn("cell", self.cellar, "up", "--dir", f"{self.work}/cell", "--cell", "test.cell", "--bind", ADDRESS,
                   "--archive-every", "0", "--verify-every", "0")
        self.until("the start", lambda: self.own("vos", "listvldb", "-noresolve"))

    def up(self, place):
        """Starts everything. `place` is that of the archive."""
        self.start()
        for number in (1, 2):
            self.serve(number, self.device(number, f"disk{number}"))
        self.serve(3, self.device(3, "tape", "-archival"), "--archive", f"{self.device_id('tape')}={place}")
        self.own("vos", "create", ADDRESS, "a", "data", "-maxquota", "0")
        self.own("vos", "setfields", "data", "-osdpolicy", "1")
        self.own("fs", "mkmount", TOP, "data", "--admin")
        self.until("the devices", lambda: all(
            row["name"] == "local_disk" or row["state"] == "up" for row in json.loads(self.own("osd", "list", "-json"))))
        # The file server knows them a little later.
        probe = f"{self.work}/probe"
        with open(probe, "wb") as file:
            file.write(os.urandom(2 << 20))
        self.until("the first copy", lambda: self.first_copy(probe))

    def device_id(self, name):
        listed = json.loads(self.own("osd", "list", "-json"))
        return next(str(row["id"]) for row in listed if row["name"] == name)

    def first_copy(self, probe):
        self.own("cp", "--admin", probe, f"{TOP}/probe")
        try:
            self.own("hsm", "archive", f"{TOP}/probe")
        finally:
            self.own("rm", "--admin", f"{TOP}/probe")
        return True
