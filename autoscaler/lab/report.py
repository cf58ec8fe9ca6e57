"""Reports: one HTML file each, with its pictures inside, that reads well without a network, a script or colours.

Does: put tables, sentences and pictures on a page. Does not: compute.
Invariant: all text from outside is escaped; the file refers to nothing outside itself; every picture has its words.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import Final

import msgspec

from autoscaler.lab.saved import Run
from autoscaler.lab.words import ROWS, shown, verdict

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1f2933;--muted:#52606d;--line:#d5dbe1;--page:#fff;--good:#1b6e3c;--bad:#a31621}
@media (prefers-color-scheme:dark){:root{
--ink:#e4e7eb;--muted:#a9b4c0;--line:#3e4c59;--page:#151b22;--good:#6fcf97;--bad:#ff8a8a}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:70rem;margin:0 auto;
padding:1.5rem}
h1{font-size:1.5rem;margin:0 0 .5rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}
p.verdict{font-size:1.1rem;border-left:.3rem solid var(--muted);padding:.2rem 0 .2rem .8rem}
p.kept{border-color:var(--good)}p.missed{border-color:var(--bad)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--muted);padding:.3rem 0}
th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.number{text-align:right;white-space:nowrap}thead th{border-bottom:2px solid var(--line)}
img{max-width:100%;height:auto;background:#fff}figure{margin:1rem 0}figcaption,.muted{color:var(--muted)}
.scroll{overflow-x:auto}pre{overflow-x:auto;border:1px solid var(--line);padding:.8rem;font-size:.85rem}
""".strip().replace("\n", "")  # fmt: skip


def page(title: str, parts: Sequence[str]) -> str:
    """A whole page of these parts, which are HTML already."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    secure = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}{secure}<title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><main>\n<h1>{escape(title)}</h1>\n" + "\n".join(parts)
        + "\n</main></body></html>\n"
    )  # fmt: skip


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[int]) -> str:
    """A table; `numbers` are the columns that are set to the right. The first cell of a row is its heading."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = []
    for row in rows:
        cells = [f'<th scope="row">{escape(row[0])}</th>']
        for place, cell in enumerate(row[1:], start=1):
            kind = ' class="number"' if place in numbers else ""
            cells.append(f"<td{kind}>{escape(cell)}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    inner = f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>{inner}</table></div>'


def picture(content: bytes, words: str) -> str:
    """A PNG inside the page; `words` tell what it shows to who cannot see it, and stand below it."""
    data = base64.b64encode(content).decode()
    image = f'<img alt="{escape(words)}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{escape(words)}</figcaption></figure>"


def heading(text: str) -> str:
    """The heading of a section."""
    return f"<h2>{escape(text)}</h2>"


def sentence(text: str, kind: str = "") -> str:
    """A paragraph."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def run_report(run: Run, image: bytes, failures: Sequence[str] = ()) -> str:
    """The report of one run. `failures`: assertions that do not hold."""
    card, result = run.card, run.result
    kept = card.slo_attainment is not None and card.slo_attainment >= run.slo.goal
    parts = [sentence(verdict(card, run.slo), f"verdict {'kept' if kept else 'missed'}")]
    if run.partial:
        parts.append(sentence(f"This is a partial result: it was {run.partial}.", "verdict missed"))
    parts += [sentence(f"Assertion failed: {one}", "verdict missed") for one in failures]
    about = (
        f"Pool {run.pool}, policies {', '.join(run.policies)}; {result.workload}, {result.source}; seed {result.seed}."
    )
    share = run.part.start_s / result.duration_s if result.duration_s else 0.0
    judged = f" Judged from {share:.0%} of the workload on." if share > 0 else ""
    parts.append(sentence(about + judged, "muted"))
    parts += [heading("Figures"), table(
        "Scorecard", ("figure", "value", "what it is", "name in --assert"),
        [(row.name, shown(row.metric, card), row.means, row.metric) for row in ROWS], frozenset({1}),
    )]  # fmt: skip
    words = (
        "From above: requests and tokens a second; units in service, on the way and aimed at; 95th percentile of the "
        "time to first token; requests outside the objective a minute. Grey: not judged."
    )
    parts += [heading("Over time"), picture(image, words)]
    done = [(name, f"{count:,}") for name, count in sorted({**result.actions, **result.faults}.items())]
    if done:
        parts += [heading("What it did"), table("Actions and faults", ("kind", "count"), done, frozenset({1}))]
    settings = msgspec.json.format(msgspec.json.encode(run.settings), indent=2).decode()
    parts += [
        heading("The world it was tried in"),
        sentence("Simulated, with these settings; what the model leaves out is listed in the documentation.", "muted"),
        f'<pre tabindex="0">{escape(settings)}</pre>',
    ]
    return page(f"{run.label} on {result.workload}", parts)
