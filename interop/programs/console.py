#!/usr/bin/python3
"""Drives the web console in Chromium, by the WebDriver protocol of chromedriver.

  console.py --administrator URL --reader URL --screens DIR [--job]

Each page is opened in light and dark, wide and as on a telephone. A page must be free of console
messages, of horizontal overflow, and of the faults that CHECKS finds. Then an administrator makes
changes, and a reader is refused. Prints a line for each finding; the status is 0 without findings.
"""
import argparse, base64, json, os, subprocess, sys, time, urllib.error, urllib.parse, urllib.request

DRIVER_PORT = 9515
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
TAB, ENTER = "\ue004", "\ue007"
SIZES = {"wide": (1280, 800), "telephone": (390, 844)}

# Faults of a page, each as a sentence.
CHECKS = r"""
const bad = [], all = s => [...document.querySelectorAll(s)];
const text = e => (e.getAttribute('aria-label') || e.textContent || '').trim();
const shown = e => e.getClientRects().length > 0;
if (document.documentElement.lang !== 'en') bad.push('no language');
if (!document.title) bad.push('no title');
if (all('h1').length !== 1) bad.push(all('h1').length + ' headings of the first level');
if (all('main').length !== 1) bad.push('not one main element');
let level = 0;
for (const h of all('h1,h2,h3,h4')) {
  const now = +h.tagName[1];
  if (now > level + 1) bad.push('heading skips a level: ' + h.textContent);
  level = now;
}
for (const e of all('input:not([type=hidden]),select,textarea'))
  if (!(e.labels && e.labels.length) && !e.getAttribute('aria-label')) bad.push('no label: ' + e.outerHTML);
for (const e of all('a,button')) if (!text(e)) bad.push('no text: ' + e.outerHTML);
for (const e of all('a')) if (!e.getAttribute('href')) bad.push('no address: ' + e.outerHTML);
for (const e of all('svg[role=img],[role=region]')) if (!e.getAttribute('aria-label')) bad.push('no name: ' + e.outerHTML.slice(0, 80));
for (const e of all('th')) if (!e.getAttribute('scope')) bad.push('th without scope: ' + e.textContent);
const ids = all('[id]').map(e => e.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) bad.push('id twice: ' + id);
for (const e of all('[aria-describedby]')) if (!document.getElementById(e.getAttribute('aria-describedby'))) bad.push('describedby of nothing');
if (all('script,[style],iframe,object').length) bad.push('scripts or styles in the page');
const root = document.documentElement;
if (root.scrollWidth > root.clientWidth) {
  const wide = all('body *').find(e => e.getBoundingClientRect().right > root.clientWidth + 1 && !e.closest('.scroll,.plot'));
  bad.push('wider than the screen: ' + root.scrollWidth + ' > ' + root.clientWidth + ', ' + (wide ? wide.outerHTML.slice(0, 120) : ''));
}
// Contrast of text, as WCAG 2 defines it.
const parse = c => { const n = c.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
const light = c => c.slice(0, 3).map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; })
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
for (const e of all('body *')) {
  if (!shown(e) || e.closest('svg,.skip') || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
  const one = light(parse(getComputedStyle(e).color)), other = light(ground(e));
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (ratio < 4.5) bad.push('contrast ' + ratio.toFixed(2) + ': ' + text(e).slice(0, 40));
}
return bad;
"""


# A page with faults, and the words of the findings that it must have.
FAULTY = """<html><h2>a</h2><h2>b</h2><input><a href=x></a><p id=i>text</p><p id=i style="color:#bbb;background:#fff">pale</p>
<div style="width:2000px">wide</div><table><tr><th>c</th></tr></table><svg role=img></svg>"""
FAULTS = ["no language", "no title", "0 headings of the first", "not one main", "skips a level", "no label", "no text", "id twice", "contrast",
          "wider than the screen", "th without scope", "no name", "styles in the page"]


class Failed(Exception):
    pass


class Browser:
    def __init__(self, screens):
        self.screens, self.findings = screens, []
        self.driver = subprocess.Popen(["chromedriver", f"--port={DRIVER_PORT}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"]
        wanted = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}, "acceptInsecureCerts": True}
        for attempt in range(100):
            try:
                made = self.call("POST", "", {"capabilities": {"alwaysMatch": wanted}}, session=False)
                break
            except (OSError, Failed):
                if attempt == 99:
                    raise
                time.sleep(0.2)
        self.session = made["sessionId"]

    def end(self):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()

    def call(self, method, path, body=None, session=True):
        address = f"http://127.0.0.1:{DRIVER_PORT}/session" + (f"/{self.session}{path}" if session else "")
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
        try:
            return json.load(urllib.request.urlopen(request, timeout=60))["value"]
        except urllib.error.HTTPError as error:
            raise Failed(json.load(error)["value"]["message"].splitlines()[0]) from None

    def cdp(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def find(self, what):
        return self.call("POST", "/element", {"using": "css selector", "value": what})[ELEMENT]

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self):
        return self.run("return document.body.innerText")

    def has(self, what):
        return self.run("return document.querySelectorAll(arguments[0]).length", what) > 0

    def open(self, address):
        self.call("POST", "/url", {"url": address})

    def click(self, what):
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", what)
        self.call("POST", f"/element/{self.find(what)}/click")

    def submit(self, what):
        """Clicks, and waits for the page that follows."""
        self.run("window.isBefore = true")
        self.click(what)
        self.wait_for(f"the page after {what}", lambda: self.run("return !window.isBefore && document.readyState === 'complete'"), 30)

    def fill(self, what, text):
        element = self.find(what)
        self.call("POST", f"/element/{element}/clear")
        self.call("POST", f"/element/{element}/value", {"text": text})

    def press(self, key):
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def logged(self):
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]

    def look(self, size, scheme):
        width, height = SIZES[size]
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=size == "telephone")
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screen(self, name):
        shot = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        with open(os.path.join(self.screens, name + ".png"), "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def check(self, name):
        for finding in self.run(CHECKS) + ["console: " + line for line in self.logged()]:
            self.found(name, finding)

    def found(self, name, finding):
        self.findings.append(name)
        print(f"{name}: {finding}", flush=True)

    def expect(self, name, condition):
        if not condition:
            self.found(name, "not so; the page says: " + " / ".join(self.text().splitlines())[:600])

    def wait_for(self, name, condition, seconds=60):
        end = time.monotonic() + seconds
        def holds():
            try:
                return condition()
            except Failed:  # the page is being loaded
                return False
        while not holds():
            if time.monotonic() > end:
                self.found(name, f"not within {seconds} s; the page says: " + " / ".join(self.text().splitlines())[:600])
                return
            time.sleep(0.3)


def log_in(browser, address):
    browser.open(address)
    browser.check("login")
    browser.submit("main button[type=submit]")
    browser.expect("logged in", browser.run("return document.querySelector('h1').innerText") == "Overview")


def visit(browser, base, pages):
    for name, path in pages:
        for size in SIZES:
            for scheme in ("light", "dark"):
                browser.look(size, scheme)
                browser.open(base + path)
                browser.check(f"{name} {size} {scheme}")
                browser.screen(f"{name}-{size}-{scheme}")
    browser.look("wide", "light")


def keyboard(browser, base):
    browser.open(base + "/volumes")
    focus = "const e = document.activeElement; return [e.className, e.getBoundingClientRect().top >= 0, getComputedStyle(e).outlineStyle, e.id]"
    browser.press(TAB)
    time.sleep(0.3)
    name, visible, outline, _ = browser.run(focus)
    browser.expect("the first Tab shows the skip link", name == "skip" and visible and outline != "none")
    browser.press(ENTER)
    browser.expect("the skip link leads to the content", browser.run(focus)[3] == "main")
    reached = set()
    for _ in range(60):
        browser.press(TAB)
        reached.add(browser.run("const e = document.activeElement; return e.id || e.getAttribute('href') || e.tagName"))
        outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
        if browser.run("return document.activeElement === document.body"):
            break
        browser.expect("focus is visible", outline != "none")
    browser.expect("Tab reaches the search and a volume", "q" in reached and any(str(r).startswith("/volume?") for r in reached))


def first(browser, base, page, link):
    browser.open(base + page)
    found = browser.run("const e = document.querySelector(arguments[0]); return e && e.getAttribute('href')", link)
    browser.expect(f"{page} has {link}", found)
    return found


def changes(browser, base, job):
    # Two pages of volumes, and of users: each row is on one of them.
    for path, least in (("/volumes", 120), ("/users", 130)):
        rows = lambda: browser.run("return [...document.querySelectorAll('main tbody tr')].map(r => r.cells[0].innerText)")
        browser.open(base + path)
        names = rows()
        browser.expect(f"{path} has a page of 100", len(names) == 100)
        browser.submit("nav.pager a[rel=next]")
        names += rows()
        browser.expect(f"{path} has all on two pages", len(names) >= least and len(set(names)) == len(names))
        browser.check(f"{path} second page")
        browser.expect(f"{path} ends", not browser.has("nav.pager a[rel=next]"))
        browser.submit("nav.pager a")
        browser.expect(f"{path} leads back", rows() == names[:100])

    # The search finds what it is asked for, and only that.
    browser.open(base + "/volumes")
    browser.fill("#q", "home.")
    browser.submit("form[role=search] button")
    browser.expect("search", "home.ann" in browser.text() and "root.cell" not in browser.text())
    browser.open(base + "/volumes?q=no.such.volume")
    browser.expect("nothing found", "No volume matches." in browser.text())

    # A policy: a wrong text, a test, a new one, another text, its end.
    browser.open(base + "/policies")
    browser.submit("main a.button")
    browser.fill("#name", "fromconsole")
    browser.fill("#text", "~'*.root' = osd;")
    browser.submit("button[formaction='/policy/store']")
    browser.expect("a wrong text is refused with its place", "line 1" in browser.text() and "^" in browser.text())
    browser.logged()
    browser.fill("#text", "~'*.root' => osd, copies=2;")
    browser.fill("#file", "run1.root")
    browser.submit("main form button.plain")
    browser.expect("test", "goes to objects" in browser.text() and "fromconsole" in browser.run("return document.querySelector('#name').value"))
    browser.check("tested policy")
    browser.screen("policy-tested")
    browser.submit("button[formaction='/policy/store']")
    browser.expect("stored", "The policy is stored." in browser.text())
    browser.fill("#text", "~'*.data' => osd;")
    browser.submit("button[formaction='/policy/store']")
    browser.open(base + "/policies")
    browser.expect("changed", "fromconsole" in browser.text() and "*.data" in browser.text())
    browser.run("[...document.querySelectorAll('main a')].find(a => a.innerText === 'fromconsole').click()")
    browser.wait_for("policy page", lambda: browser.has("input[name=sure]"))
    browser.click("input[name=sure]")
    browser.submit("main form[action='/policy/delete'] button")
    browser.expect("deleted", "fromconsole" not in browser.text() and browser.has("h1"))
    browser.check("after the deletion")

    # Members of a group.
    browser.open(base + "/user?id=system:administrators")
    browser.fill("#member", "ann")
    browser.submit("button[value=add]")
    browser.expect("member added", browser.has("button[aria-label='Remove ann from the group']"))
    browser.submit("button[aria-label='Remove ann from the group']")
    browser.expect("member removed", not browser.has("button[aria-label='Remove ann from the group']"))
    browser.fill("#member", "nosuchuser")
    browser.submit("button[value=add]")
    browser.expect("no such user", "doesn't exist" in browser.text())
    browser.logged()

    # The count of all files.
    browser.open(base + "/usage")
    browser.submit("form[action='/usage/start'] button")
    browser.wait_for("count", lambda: "Counted at" in browser.text())
    browser.expect("tables", all(words in browser.text() for words in ("Files by size", "Usage by place", "Data without a second copy")))
    visit(browser, base, [("usage-counted", "/usage")])

    if job:
        browser.open(base + "/jobs")
        browser.expect("a drain", "Drains of devices" in browser.text())
        browser.screen("jobs-drain")
        browser.submit("form[action='/drain/stop'] button")
        browser.expect("the drain has stopped", "Drains of devices" not in browser.text() and browser.has("h1"))
        browser.expect("a job", browser.has("button[value=cancel]"))
        browser.expect("its file", "objects:/file6000000.1" in browser.text())
        browser.submit("button[value=cancel]")
        ended = lambda: browser.open(base + "/jobs?ended=on") or "cancelled" in browser.text()
        browser.wait_for("cancelled", ended)
        browser.check("cancelled")


def reader(browser, base):
    names = browser.run("return [...document.querySelectorAll('nav a')].map(a => a.innerText)")
    browser.expect("a reader has no audit page", "Audit" not in names and len(names) == 7)
    for path in ("/usage", "/jobs?ended=on", "/policies", "/policy", "/user?id=system:administrators", "/volume?id=home.ann"):
        browser.open(base + path)
        buttons = "main form[action='/usage/start'], main button[name=change], main a.button, main [formaction], main form[action='/policy/delete'], main form[action^='/volume/'], main form[action='/operation/cancel']"
        browser.expect(f"{path} has no changes", not browser.has(buttons))
        browser.check(f"reader {path}")
    # The form of an administrator, sent with the session of a reader.
    for path in ("/usage/start", "/policy/store", "/policy/delete", "/job/change", "/user/member", "/volume/move", "/volume/release", "/volume/backup",
                 "/operation/cancel", "/transaction/end", "/drain/stop"):
        browser.open(base + "/policy")
        browser.run("const f = document.querySelector('main form'); f.action = arguments[0]; f.submit()", path)
        browser.wait_for(f"reader {path}", lambda: "A reader makes no changes" in browser.text(), 10)
    browser.open(base + "/audit")
    browser.expect("audit refused", "for administrators" in browser.text())
    browser.logged()
    # The policy forbids scripts.
    browser.open(base + "/")
    browser.run("const s = document.createElement('script'); s.textContent = 'document.title = \"run\"'; document.body.append(s)")
    browser.expect("no script runs", browser.run("return document.title") != "run")
    browser.expect("the browser reports it", any("Content Security Policy" in line for line in browser.logged()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--administrator", required=True)
    parser.add_argument("--reader", required=True)
    parser.add_argument("--screens", required=True)
    parser.add_argument("--job", action="store_true", help="the cell has a job that waits, and a drained device")
    options = parser.parse_args()
    parts = urllib.parse.urlsplit(options.administrator)
    base = f"{parts.scheme}://{parts.netloc}"
    os.makedirs(options.screens, exist_ok=True)
    browser = Browser(options.screens)
    try:
        browser.look("wide", "light")
        browser.open("data:text/html," + urllib.parse.quote(FAULTY))
        found = browser.run(CHECKS)
        for fault in FAULTS:
            browser.expect(f"the checks find '{fault}'", any(fault in finding for finding in found))
        browser.logged()
        log_in(browser, options.administrator)
        pages = [("overview", "/"), ("servers", "/servers"), ("volumes", "/volumes"), ("usage", "/usage"), ("jobs", "/jobs"),
                 ("policies", "/policies"), ("users", "/users"), ("audit", "/audit"), ("policy-new", "/policy")]
        pages.append(("volume", first(browser, base, "/volumes?q=home.ann", "main td a")))
        pages.append(("policy", first(browser, base, "/policies", "main td a")))
        pages.append(("user", "/user?id=ann"))
        pages.append(("group", "/user?id=system:administrators"))
        if options.job:
            pages.append(("job", first(browser, base, "/jobs", "main td a")))
        visit(browser, base, pages)
        keyboard(browser, base)
        changes(browser, base, options.job)
        browser.open(base + "/users?q=%3C")
        browser.expect("a hostile name is text", "<img src=x onerror=alert(1)>" in browser.text())
        browser.check("hostile name")
        browser.submit("form.leave button")
        browser.open(base + "/servers")
        browser.expect("logged out", "One-time token" in browser.text())
        log_in(browser, options.reader)
        reader(browser, base)
        visited = len(pages)
    finally:
        browser.end()
    print(f"{visited} pages in four looks, {len(browser.findings)} findings", flush=True)
    return 1 if browser.findings else 0


if __name__ == "__main__":
    sys.exit(main())
