"""The notes of the workers: a line for the final answer to each intended change, with the fields of a Note.

counted <TAB> plays <TAB> v7 <TAB> 1 <TAB> key <TAB> 1700000000.123 <TAB>
"""

from __future__ import annotations

from collections import Counter as Multiset
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

STOCKED, COUNTED, IMPORTED, HELD = "stocked", "counted", "imported", "held"  # STOCKED: before the workers start
PUT, REMOVED = "put", "removed"  # of a child
REFUSED, UNKNOWN, WRONG = "refused", "unknown", "wrong"  # UNKNOWN: no final answer. WRONG: Tally must not answer so
COMMITTED, RELEASED, EXPIRED = "committed", "released", "expired"  # of a hold
Tally = tuple[str, str]
"""A counter's name, and the id of one of its tallies, with the period."""


class Note(NamedTuple):
    """The final answer to one intended change. `outcome`: a constant of this module, such as COUNTED. `id`: with its
    period. `key`: the idempotency key, or the run of an import. `detail`: the number given out, the hold, the child, or
    the error."""

    outcome: str
    counter: str
    id: str
    amount: int = 0
    key: str = ""
    answered_s: float = 0.0
    """Epoch seconds."""
    detail: str = ""


def format_note(note: Note) -> str:
    """Returns the note as a line."""
    return "\t".join(map(str, note)) + "\n"


def parse_note(text: str) -> Note:
    """Returns the note in a line."""
    outcome, counter, id_, amount, key, answered_s, detail = text.rstrip("\n").split("\t")
    return Note(outcome, counter, id_, int(amount), key, float(answered_s), detail)


class Reader:
    """Reads the notes in a folder while the workers write them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, IO[str]] = {}
        self._unfinished_lines: dict[Path, str] = defaultdict(str)

    def read_new(self) -> Iterator[Note]:
        """Yields the notes since the last call."""
        for path in sorted(self._folder.glob("notes-*.tsv")):
            if path not in self._files:
                self._files[path] = path.open()
            text = self._unfinished_lines[path] + self._files[path].read()
            *lines, self._unfinished_lines[path] = text.split("\n")
            yield from map(parse_note, lines)


@dataclass
class Accepted:
    """The accepted changes, as the notes say."""

    answers: Multiset[str] = field(default_factory=Multiset)  # how many notes there are of each outcome
    sums: dict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """The sum of each tally, without holds and children."""
    holds: dict[str, tuple[Tally, int]] = field(default_factory=dict)
    """The tally and the amount of each hold, by the hold's id."""
    settled: dict[str, str] = field(default_factory=dict)
    """The last state of each settled hold, by the hold's id."""
    children: dict[Tally, set[str]] = field(default_factory=lambda: defaultdict(set))
    numbers: dict[Tally, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The numbers that `numbered` counters gave out, such as a ticket's."""
    imports: Multiset[str] = field(default_factory=Multiset)
    """The rows of each import."""
    unknown_or_wrong: list[Note] = field(default_factory=list)

    def add(self, notes: Iterable[Note]) -> None:
        """Add these notes."""
        for note in notes:
            self.answers[note.outcome] += 1
            self._add(note)

    def _add(self, note: Note) -> None:
        tally = note.counter, note.id
        match note.outcome:
            case "imported":
                self.imports[note.key] += 1
                self.sums[tally] += note.amount
                if note.detail:
                    self.children[tally].add(note.detail)
            case "stocked" | "counted":
                self.sums[tally] += note.amount
                if note.detail:
                    self.numbers[tally].append(int(note.detail))
            case "held":
                self.holds[note.detail] = tally, note.amount
            case "committed" | "released" | "expired":
                self.settled[note.detail] = note.outcome
            case "put":
                self.children[tally].add(note.detail)
            case "removed":
                self.children[tally].discard(note.detail)
            case "unknown" | "wrong":
                self.unknown_or_wrong.append(note)

    @property
    def operations(self) -> int:
        """The number of intended changes with a final answer."""
        return sum(self.answers.values()) - self.answers[STOCKED]

    def tallies(self) -> dict[Tally, int]:
        """Returns what every tally should be at the end, less its start. Only committed holds move their tally."""
        amounts = defaultdict(int, self.sums)
        for hold_id, (tally, amount) in self.holds.items():
            amounts[tally] -= amount if self.settled.get(hold_id) == COMMITTED else 0
        return amounts | {tally: len(names) for tally, names in self.children.items()}
