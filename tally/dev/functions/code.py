"""The code of the functions: the version that runs, and new versions, which run only if they load."""

from __future__ import annotations

from pathlib import Path

from ..base.errors import LocalError
from ..base.options import COUNTERS
from ..base.wire import Wire
from ..stack import tables, team_tables
from ..stack.code import Spawned, variables
from ..stack.prepared import TABLES, PreparedStack, stream_stand_in
from ..stack.template import Template, parse
from .worker import Zygote


class CodeVersions:
    """The versions of the code, each in a folder of its own."""

    def __init__(self, stack: PreparedStack, wire: Wire) -> None:
        self._stack, self._wire = stack, wire
        self._version = 0
        self._folder = stack.folder(self._version)
        self.streams: team_tables.Tables = {}
        """The team tables and their streams that the running code reads."""

    @property
    def counters(self) -> bytes:
        """The `counters.py` that runs."""
        return (self._folder / COUNTERS).read_bytes()

    async def load_first(self, spawned: Spawned) -> tuple[Zygote, Template]:
        """Load the version that the stack began with. Raises LocalError if it does not load."""
        return await self._prepare(spawned, self._folder)

    async def load_next(self, counters: bytes) -> tuple[Zygote, Template]:
        """Load the present code, with this text of `counters.py`. Raises LocalError if the code does not load."""
        self._version += 1
        folder = self._stack.write_folder(self._version, counters)
        prepared = await self._prepare(self._stack.spawn(folder), folder)
        self._folder = folder
        return prepared

    async def restart_zygote(self) -> Zygote:
        """Returns a zygote in place of a dead zygote. Raises LocalError."""
        return (await self._prepare(self._stack.spawn(self._folder), self._folder))[0]

    async def find_team_tables(self) -> team_tables.Tables:
        """Returns the team tables and their streams as they are now."""
        return await team_tables.find(self._stack.options.team_tables, self._wire)

    async def _prepare(self, spawned: Spawned, folder: Path) -> tuple[Zygote, Template]:
        """Let the zygote load the code, create the tables that the code needs, and let the zygote make the handlers."""
        zygote, stack = Zygote(*spawned), self._stack
        try:
            document = await zygote.read_document()
            stream_arns = await tables.create(document["tables"], document["ttl_attribute"], self._wire, stack.endpoint)
            arns = {stream_stand_in(table): stream_arns[table] for table in TABLES.values() if table in stream_arns}
            streams, names = await self.find_team_tables(), stack.options.team_tables
            template = team_tables.with_team_tables(parse(document), names, arns, streams)
            common = {**stack.variables, "LAMBDA_TASK_ROOT": str(folder)}
            await zygote.make_handlers({
                name: {**common, **variables(name, function.memory_mb), **function.environment}
                for name, function in template.functions.items()
            })  # fmt: skip
            self.streams = streams
            return zygote, template
        except BaseException as error:
            zygote.close()
            if isinstance(error, LocalError):
                raise LocalError(str(error).replace(str(folder / COUNTERS), str(stack.options.counters))) from None
            raise
