"""One Lambda function for each handler module, with a role that allows only what its operations need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from aws_cdk import Acknowledgment, Duration, RemovalPolicy, Stack, Validations
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from tally.api.background import Schedule, StreamReader
from tally.api.needs import Need, Table
from tally.api.operation import Route
from tally.contract import deployment
from tally.contract.declarations import Declarations
from tally.contract.deployment import CONSUMER_TIMEOUT_S, MEMORY_MB, SCHEDULED_TIMEOUT_S, TIMEOUT_S, Surroundings

from .bundling import Bundle
from .concurrency import concurrency_limits
from .dead_letters import DeadLetters
from .event_bus import EventBus
from .names import Names, camel
from .options import Options
from .tables import Tables, leading_keys_condition
from .team_tables import TeamTables

# 1,769 MB is a whole CPU. If a million tallies change in a minute, the judge takes seconds and up to 500 MB. In dev,
# fewer tallies change, and the sweep mostly waits.
SCHEDULED_MEMORY_MB, SCHEDULED_MEMORY_DEV_MB = 1769, 512
SCHEDULED_AGE_MAX = Duration.seconds(60)  # AWS's minimum. Lambda drops an older event, because the next run is due
# A function is busy if it uses tables, and a route has at least this throttle: it gets a snapshot and a canary.
BUSY_PER_S = 500
LOG_RETENTION = logs.RetentionDays.ONE_MONTH
ALIAS = "live"
RUNTIME = lambda_.Runtime.PYTHON_3_14


class Functions(Construct):
    """The functions, by the name of their handler's module, each behind its alias `live`."""

    aliases: dict[str, lambda_.Alias]
    """The functions that serve operations, also to strangers."""
    consumers: dict[str, lambda_.Alias]
    writers: list[lambda_.Alias]
    """The functions whose writes the consumers read: of operations that write, and the sweep, which releases holds."""
    background: dict[str, lambda_.Alias]
    """The functions whose failure no caller sees: the consumers and the scheduled functions."""
    busy: dict[str, lambda_.Alias]
    """The busy functions that serve operations: see BUSY_PER_S."""
    version: str
    """The version of the code, as in `GET /health`."""
    surroundings: Surroundings
    """The facts about the stack that the functions need."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        names: Names,
        declarations: Declarations,
        bundle: Bundle,
        tables: Tables,
        team_tables: TeamTables,
        dead_letters: DeadLetters,
        event_bus: EventBus | None,
        options: Options,
    ) -> None:
        super().__init__(scope, id)
        self._tables = tables
        self._team_tables = team_tables
        self._dead_letters, self._event_bus = dead_letters, event_bus
        self._options = options
        self._code = bundle.code(bundled=Stack.of(self).bundling_required)
        self.version = bundle.digest()[:12]
        self.surroundings = self._make_surroundings(names.base)
        self._needs = declarations.needs
        by_module = declarations.routes_by_function
        self._concurrency_limits = concurrency_limits(by_module, options)
        self._functions: dict[str, lambda_.Function] = {}
        self.busy = {}
        self.aliases = {module: self._add_serving_function(module, routes) for module, routes in by_module.items()}
        scheduled = {schedule.function: self._add_scheduled_function(schedule) for schedule in declarations.schedules}
        self.consumers = {consumer.function: self._add_consumer(consumer) for consumer in declarations.readers}
        self.background = {**self.consumers, **scheduled}
        writing = [name for name, routes in by_module.items() if any(route.operation.writes for route in routes)]
        self.writers = [*(self.aliases[name] for name in writing), *scheduled.values()]

    def add_variables(self, module: str, variables: Mapping[str, str]) -> None:
        """Give a function the variables that depend on a resource made after it."""
        for name, value in variables.items():
            self._functions[module].add_environment(name, value)

    def _make_surroundings(self, service: str) -> Surroundings:
        options, tables = self._options, self._tables.by_name
        with_stream = [table for table, schema in deployment.TABLES.items() if schema.has_stream]
        return Surroundings(
            service=service,
            version=self.version,
            tables={table: resource.table_name for table, resource in tables.items()},
            streams={table: str(tables[table].table_stream_arn) for table in with_stream},
            dead_letters=self._dead_letters.bucket.bucket_name,
            page_hosts=",".join(options.page_hosts),
            likers_visible=options.likers_visible,
            receipt_ttl_hours=options.receipt_ttl_hours,
            series_days=options.series_days,
            team_tables=self._team_tables.names_and_streams,
            spot_check_units=options.spot_check_units,
            event_bus=self._event_bus.arn if self._event_bus else "",
            has_cdn=options.cdn,
        )

    def _add_serving_function(self, module: str, routes: Sequence[Route]) -> lambda_.Alias:
        """Adds a function whose callers wait. A busy function starts from a snapshot, because a cold start takes a
        second. The function without tables is not busy: it serves the beacon's script, which browsers cache."""
        options, share = self._options, self._options.log_sampling
        # Powertools logs everything in this share of the invocations, and otherwise only warnings and errors.
        sampling = {"POWERTOOLS_LOG_LEVEL": "WARNING"} if share < 1 else {}
        if 0 < share < 1:
            sampling["POWERTOOLS_LOGGER_SAMPLE_RATE"] = f"{share:g}"
        busy = bool(self._needs[module]) and any(route.throttle.rate_per_s >= BUSY_PER_S for route in routes)
        alias = self._add_function(
            module,
            ", ".join(dict.fromkeys(route.operation.name for route in routes)),
            environment={**sampling, **deployment.serving_variables(routes, self.surroundings)},
            reserved=self._concurrency_limits.get(module),
            snapshot=options.snap_start and busy,
            traced=options.tracing != "off",
        )
        if busy:
            self.busy[module] = alias
        return alias

    def _add_consumer(self, consumer: StreamReader) -> lambda_.Alias:
        alias = self._add_function(
            consumer.function,
            consumer.does,
            timeout_s=CONSUMER_TIMEOUT_S,
            environment=deployment.consumer_variables(consumer, self.surroundings),
            reserved=self._options.reserved_concurrency,
        )
        self._dead_letters.grant_put(consumer, alias)
        self._grant_send_events(consumer, alias)
        return alias

    def _add_scheduled_function(self, schedule: Schedule) -> lambda_.Alias:
        alias = self._add_function(
            schedule.function,
            schedule.does,
            timeout_s=SCHEDULED_TIMEOUT_S,
            memory_mb=SCHEDULED_MEMORY_MB if self._options.keeps_data else SCHEDULED_MEMORY_DEV_MB,
            environment=deployment.schedule_variables(schedule, self.surroundings),
            reserved=1 if self._options.reserved_concurrency else None,  # a run ends before the next run begins
        )
        if schedule.inspected_streams:  # the sweep, which also writes heartbeats and spot-checks the team's items
            assert isinstance(alias.role, iam.Role)
            alias.role.add_to_policy(self._tables.read_streams_statement(schedule.inspected_streams))
            self._team_tables.grant_read_streams(alias.role)
            self._team_tables.grant_write_heartbeats(alias.role)
            for statement in self._team_tables.scan_statements if self._options.spot_check_units else ():
                alias.role.add_to_policy(statement)
        self._grant_send_events(schedule, alias)
        # EventBridge invokes the function asynchronously. Lambda retries no failed run: the next run does the work.
        alias.configure_async_invoke(retry_attempts=0, max_event_age=SCHEDULED_AGE_MAX)
        events.Rule(
            alias,
            "Schedule",
            description=f"Runs Tally's {schedule.function}, which {schedule.does}",
            schedule=events.Schedule.rate(Duration.minutes(schedule.every_min)),
            targets=[targets.LambdaFunction(alias, retry_attempts=0)],
        )
        return alias

    def _grant_send_events(self, sender: StreamReader | Schedule, alias: lambda_.Alias) -> None:
        if sender.sends_events and self._event_bus:
            assert isinstance(alias.role, iam.Role)
            self._event_bus.grant_put_events(alias.role)

    def _add_function(
        self,
        module: str,
        does: str,
        *,
        timeout_s: int = TIMEOUT_S,
        memory_mb: int = MEMORY_MB,
        environment: Mapping[str, str] = MappingProxyType({}),
        reserved: int | None = None,
        snapshot: bool = False,
        traced: bool | None = None,
    ) -> lambda_.Alias:
        """Adds a function with its role and log group. `does`: what it does, for its description. `reserved`: its
        reserved concurrency. `snapshot`: it starts from a snapshot. `traced`: None if only `tracing=all` traces it."""
        traced = self._options.tracing == "all" if traced is None else traced
        scope = Construct(self, camel(module))
        log_group = logs.LogGroup(
            scope,
            "Logs",
            retention=LOG_RETENTION,
            removal_policy=RemovalPolicy.RETAIN if self._options.keeps_data else RemovalPolicy.DESTROY,
        )
        role = FunctionRole(scope, "Role", description=f"What Tally's {module} function may do")
        log_group.grant_write(role)
        for statement in policy_statements(self._tables, self._needs[module]):
            role.add_to_policy(statement)
        function = lambda_.Function(
            scope,
            "Function",
            description=f"Tally: {does}"[:256],
            code=self._code,
            handler=f"handlers.{module}",
            runtime=RUNTIME,
            architecture=lambda_.Architecture.ARM_64,
            memory_size=memory_mb,
            timeout=Duration.seconds(timeout_s),
            reserved_concurrent_executions=reserved,
            role=role,
            log_group=log_group,
            # If a call succeeds, Lambda's own lines (START, END, REPORT) are longer than the function's, and say what
            # metrics say. Lambda still writes its lines about failures.
            logging_format=lambda_.LoggingFormat.JSON,
            system_log_level_v2=lambda_.SystemLogLevel.WARN,
            tracing=lambda_.Tracing.ACTIVE if traced else lambda_.Tracing.DISABLED,
            snap_start=lambda_.SnapStartConf.ON_PUBLISHED_VERSIONS if snapshot else None,
            environment={**deployment.common_variables(self.surroundings), **environment},
        )
        _acknowledge(role, function)
        self._functions[module] = function
        return lambda_.Alias(scope, "Live", alias_name=ALIAS, version=function.current_version)


class FunctionRole(iam.Role):
    """The role of one function. All grants go into its inline policy, because CDK's default, a policy as a resource of
    its own, would take one more of a stack's 500 resources."""

    def __init__(self, scope: Construct, id: str, *, description: str) -> None:
        self._allowed = iam.PolicyDocument()
        lambda_service = iam.ServicePrincipal("lambda.amazonaws.com")
        inline = {"Allowed": self._allowed}
        super().__init__(scope, id, assumed_by=lambda_service, description=description, inline_policies=inline)

    def add_to_principal_policy(self, statement: iam.PolicyStatement) -> iam.AddToPrincipalPolicyResult:
        self._allowed.add_statements(statement)
        return iam.AddToPrincipalPolicyResult(statement_added=True, policy_dependable=self)

    def add_to_policy(self, statement: iam.PolicyStatement) -> bool:
        return bool(self.add_to_principal_policy(statement).statement_added)


def policy_statements(tables: Tables, needs: Iterable[Need]) -> list[iam.PolicyStatement]:
    """Returns statements that allow `needs`: one for all actions on the same table and prefixes of partition keys."""
    prefixes: dict[tuple[Table, str], set[str]] = {}
    for need in needs:
        prefixes.setdefault((need.table, need.action), set()).add(need.prefix)
    actions: dict[tuple[Table, tuple[str, ...]], list[str]] = {}
    for (table, action), its_prefixes in sorted(prefixes.items(), key=lambda entry: (entry[0][0].value, entry[0][1])):
        actions.setdefault((table, tuple(sorted(its_prefixes))), []).append(f"dynamodb:{action}")
    return [
        iam.PolicyStatement(
            actions=names,
            resources=[tables.by_name[table].table_arn],
            # A prefix that does not end in `#` is a whole key.
            conditions=leading_keys_condition(f"{each}*" if each.endswith("#") else each for each in shared_prefixes),
        )
        for (table, shared_prefixes), names in actions.items()
    ]


def _acknowledge(role: iam.Role, function: lambda_.Function) -> None:
    """Acknowledges what cdk-nag and CDK object to: permissions on `*`, and a snapshot of a function."""
    Validations.of(role).acknowledge(
        Acknowledgment(
            id="AwsSolutions-IAM5[Resource::*]",
            reason="xray:PutTraceSegments and xray:PutTelemetryRecords of traced functions, and dynamodb:ListStreams"
            " of functions that read streams, take no resource; nothing else is on *",
        )
    )
    Validations.of(function).acknowledge(
        Acknowledgment(
            id="@aws-cdk/aws-lambda:snapStartRequirePublish",
            reason="The function's version is published, and callers invoke only its alias",
        )
    )
