"""The report that the demo prints at its end."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from .replay import COUNTS_S_MAX, PAGES, Comparison, ReplayOutcome
from .weblog import SITE

DIFFERENCES_SHOWN_MAX = 10
PATH_CHARACTERS_SHOWN_MAX = 60


def report(outcome: ReplayOutcome) -> Iterator[str]:
    """Returns the lines of the report."""
    log, sent, (lost, doubled) = outcome.log, outcome.sent, outcome.lost_and_doubled
    yield f"The {PAGES} most visited of {len(outcome.expected):,} pages of {SITE}:\n"
    yield "    log  Tally"
    for page, number in outcome.expected.most_common(PAGES):
        yield f"{number:7,}{outcome.counted[page]:7,}  {_shown_path(page)}"
    yield ""
    yield from _fact_lines(
        ("in the log", len(log.visits), f"requests, and {log.malformed:,} malformed lines"),
        ("sent", sent.requests, f"times in {outcome.took_s:.1f} s"),
        ("", sent.sent_twice, "visits twice at the same time"),
        ("", sent.answers_lost, "visits again because their answer was lost"),
        ("", sent.retries, "times again because the server was busy or gave no answer"),
        ("replayed", sent.replays, "answers to visits that were counted before"),
        ("counted", sum(outcome.counted.values()), "visits"),
        ("lost", lost, "visits"),
        ("doubled", doubled, "visits"),
    )
    yield ""
    if outcome.counts_right_after_s is None:
        yield f"After {COUNTS_S_MAX:.0f} s the counts still differed from the log."
    else:
        yield f"The counts were right {outcome.counts_right_after_s:.1f} s after the last visit."
    yield from _drift_lines(outcome)
    yield from _series_lines(outcome.series_and_top)
    if not outcome.differing_pages:
        yield f"All {len(outcome.expected):,} pages have the log's count."
        return
    for page in outcome.differing_pages[:DIFFERENCES_SHOWN_MAX]:
        yield f"differs: {_shown_path(page)}: {outcome.expected[page]:,} in the log, {outcome.counted[page]:,} by Tally"


def complaints(outcome: ReplayOutcome) -> Iterator[str]:
    """Returns a line for each reason why the demo fails."""
    if outcome.differing_pages:
        yield f"{len(outcome.differing_pages)} pages differ from the log (or had other visits during the run)"
    elif outcome.counts_right_after_s is None:
        yield f"the counts were right more than {COUNTS_S_MAX:.0f} s after the last visit"
    compared = outcome.series_and_top
    if compared and compared.took_s is None:
        yield "series and top list did not reach the end of the run: run `tally status --local`"
    elif compared and compared.differing_pages:
        yield f"series or top list differ from the log for {len(compared.differing_pages)} pages"
    if outcome.drifts:
        yield f"{len(outcome.drifts)} tallies drifted during the run"


def _drift_lines(outcome: ReplayOutcome) -> Iterator[str]:
    judged = outcome.series_and_top is not None and outcome.series_and_top.took_s is not None
    judged_minutes = "the run's minutes are judged" if judged else "some of the run's minutes are not judged yet"
    yield f"GET /drift: {len(outcome.drifts):,} tallies drifted ({judged_minutes})."
    for row in outcome.drifts[:DIFFERENCES_SHOWN_MAX]:
        yield f"drifts: {row.counter} of {row.id} by {row.drift:+,}"


def _series_lines(compared: Comparison | None) -> Iterator[str]:
    if compared is None or compared.took_s is None:
        return
    for page in compared.differing_pages:
        in_tally = f"{compared.series[page]:,} in the series, {compared.top[page]:,} in the top list"
        yield f"differs: {_shown_path(page)}: {compared.log[page]:,} in the log, {in_tally}"
    if not compared.differing_pages:
        equal = f"series and top list of the {len(compared.log)} most visited pages equal the log"
        yield f"GET /series and GET /top/any, {compared.took_s:.0f} s after the last visit: {equal}."


def _fact_lines(*facts: tuple[str, int, str]) -> Iterator[str]:
    for name, number, explanation in facts:
        yield f"{name:10}{number:7,}  {explanation}"


def _shown_path(page: str) -> str:
    parts = urlsplit(page)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return path if len(path) <= PATH_CHARACTERS_SHOWN_MAX else path[: PATH_CHARACTERS_SHOWN_MAX - 1] + "…"
