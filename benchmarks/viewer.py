"""How large the viewer's page is, and how soon Chromium shows it: 200 responses of 2,000 tokens, with every column.

    python benchmarks/viewer.py [--responses 200] [--tokens 2000]
    python benchmarks/viewer.py --picture docs/viewer.png  # makes the README's picture and measures nothing

Prints the size of the file, what it takes to build it, and, where there is a Chromium, the time from opening the file
until the first response is drawn, the time that a group of 8 takes, and how long frames take while its page scrolls.
"""

import argparse
import base64
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from chromium import Chromium, find_chromium
from viewer_helpers import SOLUTION, explained, header, response, tokens_of, with_trace

from trl_credit.lab.viewer import build_page
from trl_credit.observe.schema import Shard


GROUP = 8
SCROLL = """
new Promise(done => {
  const times = []; let last = performance.now();
  const step = now => {
    times.push(now - last); last = now; scrollBy(0, 120);
    times.length < 90 ? requestAnimationFrame(step) : done(times.slice(2));
  };
  requestAnimationFrame(step);
})
"""


def shard(responses: int, tokens: int) -> Shard:
    """Rows in which no column is constant, but the advantage and the masks: the worst that a run of S-trace logs."""
    rng = random.Random(0)
    words = [f" w{number}" for number in range(30_000)] + tokens_of(SOLUTION) * 300
    rows = []
    for number in range(responses):
        text = "".join(rng.choice(words) if k % 20 else "\n" for k in range(2 * tokens))
        text = "".join(tokens_of(text)[:tokens])
        row = response(text, group=number // GROUP, index=number % GROUP, advantage=rng.choice((-1.0, 1.0)))
        row = with_trace(row, decay=0.99)
        noise = [rng.gauss(0, 0.01) for _ in row["tokens"]]
        row["ref_logprobs"] = [min(a + b, 0.0) for a, b in zip(row["old_logprobs"], noise, strict=True)]
        rows.append({**row, "kl_credit": noise})
    return Shard(header("S-trace", trace_decay=0.99), {}, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    args = parser.parse_args()
    if args.picture is not None:
        draw(args.picture)
        return
    logged = shard(args.responses, args.tokens)
    count = sum(len(row["tokens"]) for row in logged.responses)
    began = time.perf_counter()
    page = build_page([logged], title="benchmark")
    print(f"{args.responses} responses, {count} tokens: built in {time.perf_counter() - began:.1f} s")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        print(f"file: {file.stat().st_size / 1e6:.1f} MB, {file.stat().st_size / count:.0f} bytes per token")
        if find_chromium() is None:
            print("no Chromium here: nothing more is measured")
            return
        measure(file)


def measure(file: Path) -> None:
    with Chromium() as browser:
        drawn = "performance.getEntriesByName('ready')[0].startTime"
        times = []
        for _ in range(3):
            browser.open(file)
            times.append(browser.evaluate(drawn))
        print(f"first response drawn after {statistics.median(times):.0f} ms (median of 3)")
        show = "(began => { go({ layout: 'group' }); document.body.offsetHeight; return performance.now() - began })"
        print(f"a group side by side after {browser.evaluate(f'{show}(performance.now())'):.0f} ms")
        frames = sorted(browser.evaluate(SCROLL))
        print(f"scrolling it: median frame {statistics.median(frames):.1f} ms, 95 % below {frames[-5]:.1f} ms")
        if browser.messages:
            print("Chromium said:", *browser.messages, sep="\n")


def draw(picture: Path) -> None:
    """A response under GRPO and S-trace, with the cursor on a token."""
    shards = explained()
    for row in (row for one in shards for row in one.responses):
        row["answer"] = "15"
    for one in shards:
        one.header["model"] = "a made-up model"
    with tempfile.TemporaryDirectory() as folder, Chromium(1280, 860) as browser:
        file = Path(folder) / "page.html"
        file.write_text(build_page(shards, title="an example"), encoding="utf-8")
        browser.prefer("light")
        browser.open(file, fragment="token=26")
        picture.write_bytes(base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"]))


if __name__ == "__main__":
    main()
