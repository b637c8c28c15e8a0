"""A shell for a person's session. Its commands share variables, and read answers to questions from a terminal."""

from __future__ import annotations

import codecs
import os
import pty
import re
import select
import subprocess
import termios
from collections.abc import Mapping, Sequence

from tests.emulator.page import QUESTION
from tests.environments import ROOT
from tests.patience import PATIENCE_S

QUESTION_AT_END = re.compile(rf"{QUESTION} \Z")
LOCAL_MODES = 3  # the position of these modes in the list of tcgetattr
END = re.compile(r"\n--- ended: (\d+) ---\n\Z")


class Terminal:
    """`bash` in the checkout. Output and questions arrive in the order in which a person sees them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._keyboard, self._terminal = pty.openpty()
        modes = termios.tcgetattr(self._terminal)
        modes[LOCAL_MODES] &= ~termios.ECHO  # `run` adds each answer to the output instead
        termios.tcsetattr(self._terminal, termios.TCSANOW, modes)
        self._process = subprocess.Popen(
            ["bash"], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def run(self, command: str, answers: Sequence[str] = ()) -> tuple[int, str]:
        """Returns the exit status and the output. `answers`: for the first questions; later questions get Enter."""
        assert self._process.stdin is not None
        path = os.ttyname(self._terminal)
        line = f"{{ {command}\n}} <{path}; printf '\\n--- ended: %s ---\\n' $?\n"
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        printed, answers_left = "", list(answers)
        while not (end := END.search(printed)):
            printed += self._read(command, printed)
            if QUESTION_AT_END.search(printed):
                answer = answers_left.pop(0) if answers_left else ""
                os.write(self._keyboard, f"{answer}\n".encode())
                printed += f"{answer}\n"
        return int(end[1]), printed[: end.start()].strip()

    def _read(self, command: str, printed: str) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        assert ready, f"silent for {PATIENCE_S} s: {command}\n{printed[-2000:]}"
        output = os.read(self._process.stdout.fileno(), 65536)
        assert output, f"the shell ended: {command}\n{printed[-2000:]}"
        return self._decoder.decode(output)

    def close(self) -> None:
        """Ends the shell."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()
        os.close(self._keyboard)
        os.close(self._terminal)
