#!/usr/bin/python3
"""Moves, releases and backs up a volume by the web console in Chromium, and cancels it.

  console-operations.py --administrator URL --reader URL --screens DIR --volume NAME --home 'ADDRESS PARTITION'
                        --to 'ADDRESS PARTITION' --slow DEVICE

The link DEVICE to the server of --to is slow at first, so that a transfer lasts for some tens of seconds.
CELLAR names the program, CELLAR_DIR the directory of the cell. Prints a line for each finding; the status
is 0 without findings.
"""
import argparse, json, os, subprocess, sys, time, urllib.parse

from console import Browser, log_in, visit

# The form of the page of a volume that starts an operation.
MOVE, RELEASE, BACKUP = (f"main form[action='/volume/{word}']" for word in ("move", "release", "backup"))
CANCEL = "main button[value=cancel-operation]"


def cellar(*words):
    done = subprocess.run([os.environ["CELLAR"], *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stdout, done.stderr


class Volume:
    def __init__(self, browser, base, name, home, to):
        self.browser, self.base, self.name, self.home, self.to = browser, base, name, home, to

    def open(self):
        self.browser.open(f"{self.base}/volume?id={self.name}")

    def start(self, form, what=None):
        """Sends a form of the volume's page. The page of the operation follows."""
        self.open()
        if what is not None:
            self.browser.run("document.querySelector('#to').value = arguments[0]", what)
        self.browser.submit(f"{form} button")
        self.browser.expect(f"{form} leads to the operation", "/operation?id=" in self.browser.run("return location.href"))
        return self.browser.run("return location.pathname + location.search")

    def state(self):
        return self.browser.run("return document.querySelector('main .state').innerText")

    def ends(self, page, state, seconds=120):
        self.browser.wait_for(f"{page} is {state}", lambda: self.browser.open(self.base + page) or self.state() == state, seconds)

    def runs(self, page):
        """Waits until the page shows transferred bytes, by its own loads."""
        self.browser.open(self.base + page)
        moved = lambda: self.browser.run("const bar = document.querySelector('main rect.used'); return bar && +bar.getAttribute('width') > 0")
        self.browser.wait_for(f"{page} has progress", moved, 30)
        self.browser.expect(f"{page} is running", self.state() == "running")

    def expect_at(self, name, place):
        """The volume is on line and unlocked at a place, and no server has another copy or a transaction."""
        server, partition = place.split()
        status, out, err = cellar("vos", "examine", self.name, "--json", "-noresolve")
        if status != 0:
            return self.browser.found(name, err)
        found = json.loads(out)
        site = [site for site in found["entry"]["sites"] if "read_write" in site["flags"]][0]
        if (site["server"], site["partition"]) != (server, partition):
            self.browser.found(name, f"the VLDB has it on {site}")
        if any(flag.startswith("locked") for flag in found["entry"]["flags"]):
            self.browser.found(name, f"the entry is locked: {found['entry']['flags']}")
        for place in (self.home, self.to):
            server, partition = place.split()
            status, out, err = cellar("vos", "listvol", server, partition, "-noresolve")
            copies = [line for line in out.splitlines() if line.startswith(self.name + " ")]
            wanted = [server, partition] == place.split() and place == f"{site['server']} {site['partition']}"
            if len(copies) != int(wanted) or any("On-line" not in line for line in copies):
                self.browser.found(name, f"{place}: {out}{err}")
            status, out, err = cellar("vos", "status", server, "-localauth")
            if "No active transactions" not in out:
                self.browser.found(name, f"{server}: {out}{err}")


def cancelled(browser, volume):
    page = volume.start(MOVE, volume.to)
    volume.runs(page)
    browser.expect("who and when", "by session 1" in browser.text())
    visit(browser, volume.base, [("operation-running", page), ("volume-running", f"/volume?id={volume.name}"), ("jobs-running", "/jobs")])
    volume.open()
    browser.expect("one operation at a time", browser.has(CANCEL) and not browser.has(MOVE))
    browser.expect("the page loads itself", browser.has("meta[http-equiv=refresh]"))
    browser.open(volume.base + "/jobs")
    browser.expect("its transactions", "RestoreDelta" in browser.text() and volume.name in browser.text())
    browser.open(volume.base + page)
    browser.submit(CANCEL)
    volume.ends(page, "cancelled")
    browser.expect("the state that is left", "and its entry is not locked" in browser.text())
    volume.expect_at("after the cancel", volume.home)


def ended_elsewhere(browser, volume, name, program, sentence):
    """A command moves the volume; the console ends its transaction."""
    # The page keeps an answer for some seconds.
    none_left = lambda: browser.open(volume.base + "/jobs") or "No volume is being moved" in browser.text()
    browser.wait_for(f"no transactions before {name}", none_left, 30)
    vos, *options = program
    words = [*vos, "move", volume.name, *volume.home.split(), *volume.to.split(), *options]
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    button = "main form[action='/transaction/end'] button"
    shown = lambda: browser.open(volume.base + "/jobs") or browser.has(button) and "received" in browser.text()
    browser.wait_for(f"the transactions of {name}", shown, 30)
    browser.check(f"jobs with transactions of {name}")
    browser.screen(f"jobs-{name}")
    browser.submit(button)
    browser.expect(f"the transaction of {name} is ended", "Transaction not ended" not in browser.text())
    out, _ = command.communicate(timeout=90)
    if command.returncode == 0 or sentence not in out:
        browser.found(f"{name} fails with a sentence", f"status {command.returncode}: {out}")
    volume.expect_at(f"after the end of the transaction of {name}", volume.home)


def done(browser, volume):
    page = volume.start(MOVE, volume.to)
    volume.ends(page, "done")
    browser.check("a move is done")
    volume.expect_at("after the move", volume.to)
    page = volume.start(BACKUP)
    volume.ends(page, "done")
    status, _, err = cellar("vos", "addsite", *volume.home.split(), volume.name)
    if status != 0:
        browser.found("addsite", err)
    page = volume.start(RELEASE)
    volume.ends(page, "done")
    browser.expect("all sites", "All read-only sites have the release." in browser.text())
    status, out, _ = cellar("vos", "listvol", *volume.home.split(), "-noresolve")
    if f"{volume.name}.readonly" not in out:
        browser.found("the release", out)
    # A wrong operation fails with its sentence.
    server, partition = volume.home.split()
    volume.open()
    browser.run("const s = document.querySelector('#to'); s.options[0].value = arguments[0]; s.value = arguments[0]", f"{server} /vicepz")
    browser.submit(f"{MOVE} button")
    page = browser.run("return location.pathname + location.search")
    volume.ends(page, "failed")
    browser.expect("why it failed", "partition /vicepz does not exist" in browser.text())
    volume.open()
    browser.wait_for("the page is fresh", lambda: volume.open() or "released" in browser.text(), 20)
    visit(browser, volume.base, [("volume-done", f"/volume?id={volume.name}"), ("jobs-done", "/jobs")])


def reader(browser, volume):
    volume.open()
    browser.expect("a reader starts nothing", not any(browser.has(form) for form in (MOVE, RELEASE, BACKUP)))
    for path in ("/jobs", "/operation?id=1"):
        browser.open(volume.base + path)
        browser.expect(f"a reader sees {path}", volume.name in browser.text() and not browser.has("main button[name=change]"))
        browser.check(f"reader {path}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("administrator", "reader", "screens", "volume", "home", "to", "slow"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    parts = urllib.parse.urlsplit(options.administrator)
    os.makedirs(options.screens, exist_ok=True)
    browser = Browser(options.screens)
    try:
        browser.look("wide", "light")
        log_in(browser, options.administrator)
        volume = Volume(browser, f"{parts.scheme}://{parts.netloc}", options.volume, options.home, options.to)
        cancelled(browser, volume)
        ended_elsewhere(browser, volume, "cellar-vos", [[os.environ["CELLAR"], "vos"]], "Failed to send volume")
        theirs = [["vos"], "-localauth", "-config", os.path.join(os.environ["CELLAR_DIR"], "server-etc")]
        ended_elsewhere(browser, volume, "openafs-vos", theirs, "Failed to move data for the volume")
        subprocess.run(["tc", "qdisc", "del", "dev", options.slow, "root"], check=True)
        done(browser, volume)
        browser.submit("form.leave button")
        log_in(browser, options.reader)
        reader(browser, volume)
    finally:
        browser.end()
    print(f"2 moves, a release and a backup, {len(browser.findings)} findings", flush=True)
    return 1 if browser.findings else 0


sys.exit(main())
