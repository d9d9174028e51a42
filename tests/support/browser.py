"""A real browser without a screen, and what a page shows in it."""

import base64
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=20000"),
)
_PRINT = """
window.llmprobeReady.then(async () => {
  const answer = await (async () => { %s })();
  document.body.innerHTML = "<pre id=answer></pre>";
  document.getElementById("answer").textContent = JSON.stringify(answer);
});
"""


def ask(page: str, folder: Path, script: str) -> tuple[Any, list[str]]:
    """What a script of the test returns in a page, and what the browser's console said.

    The page's policy is widened for that script alone: it stays forbidden to fetch anything.
    """
    code = _PRINT % script
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    allowed = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    before, end, _ = allowed.rpartition("</body>")
    asked = f"{before}<script>{code}</script>{end}</html>"
    path = folder / "asked.html"
    path.write_text(asked, encoding="utf-8")
    profile = f"--user-data-dir={folder / 'profile'}"
    done = subprocess.run(
        [str(CHROMIUM), *_FLAGS, profile, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    start = done.stdout.find('<pre id="answer">')
    assert start >= 0, (said, done.stdout[-2000:])
    text = done.stdout[start:].partition(">")[2].partition("</pre>")[0]
    for sign, name in (("<", "lt"), (">", "gt"), ("&", "amp")):
        text = text.replace(f"&{name};", sign)
    return json.loads(text), said
