"""The construct `Tally`, for a team's stack or for the stack of one stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from aws_cdk import Annotations, Aws, CfnOutput, Stack, Stage, Token
from aws_cdk import aws_apigatewayv2 as http
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from constructs import Construct

from tally import observe
from tally.api import needs
from tally.api.operation import STRANGERS_SUFFIX
from tally.contract.declarations import Declarations
from tally.contract.deployment import console_variables, table_schemas, team_tables_json, transact_variable
from tally.counter import Counter
from tally.dynamo.keys import FORMAT
from tally.paths import LAMBDAS

from .api import Api
from .backup import Backup
from .bundling import Bundle
from .canary import Canary
from .dead_letters import DeadLetters
from .event_bus import EventBus
from .failed_events import FailedEvents
from .functions import RUNTIME, Functions, policy_statements
from .metrics import TallyMetrics
from .monitoring import Monitoring, Parts
from .names import Names, camel
from .operator import Operator, operator_needs, runbook_statements
from .options import Options, OptionsError
from .quotas import check_quotas
from .streams import Streams
from .tables import Tables
from .team_tables import TeamTables


class Tally(Construct):
    """Tables, functions, HTTP API, alarms, and the outputs that name them.

        tally = Tally(self, "Tally", counters="counters.py", page_hosts=["example.com"])
        tally.grant_count(checkout)

    Names and logical ids follow the construct's path in the stack. CDK leaves the id `Default` out of a path, so with
    this id all names begin with the stack's name alone. Each Tally has about 240 of the 500 resources of a stack.
    """

    tables: Tables
    api: http.HttpApi
    functions: dict[str, lambda_.Alias]
    """The functions that other functions may invoke, by their names in the client: all that do not serve strangers."""
    alarm_topic: sns.Topic
    url: str
    """The address of the API for callers."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        counters: str | Path | Declarations,
        keep_data: bool = True,
        tables: Mapping[str, dynamodb.ITable] = MappingProxyType({}),
        options: Options | None = None,
        bundle: Bundle | None = None,
        **given: object,
    ) -> None:
        """`counters`: the path of `counters.py`, relative to the folder where `cdk` runs.

        `keep_data`: whether tables and users outlive the stack and are protected from deletion. If False, options have
        the defaults of the stage dev. `tables`: your tables with items that Tally counts, by their names in
        `counters.py`. `given`: options by the names of their fields (tally/cdk/options.py). Only the stack of a stage
        passes `options`, which app.py reads from the context, and `bundle`, whose cache folder app.py chooses.

        Raises OptionsError, and ConfigurationError for wrong declarations.
        """
        super().__init__(scope, id)
        declarations = counters if isinstance(counters, Declarations) else Declarations.load(Path(counters))
        for line in declarations.warnings:
            Annotations.of(self).add_warning_v2("tally:undeclared", line)
        self._options = options = options or Options.from_arguments(given, keep_data=keep_data)
        region_and_account = Stack.of(self).region, Stack.of(self).account
        options.check_region(*(None if Token.is_unresolved(part) else part for part in region_and_account))
        self._names = Names.of(self, options.docs_url)
        self._names.check(with_users=not options.issuer)
        self._claimed_variables: set[tuple[str, str]] = set()
        """The path of each function that counts with this Tally, and the name of the variable that this Tally sets."""
        self._transact_counters: dict[tuple[str, str], dict[str, Counter]] = {}
        """The counters that a function may change in its own transactions, by the function's path and the variable."""
        self._declarations = declarations
        self._team_tables = TeamTables(self, tables, declarations)
        assembly = Stage.of(self)
        assert assembly is not None
        self._build(bundle or Bundle(LAMBDAS, declarations, options.likers_visible, cache_folder=Path(assembly.outdir)))
        check_quotas(self)

    def grant(self, grantee: iam.IGrantable, functions: Iterable[str] | None = None) -> iam.Grant:
        """Let a role, or a construct that has a role, invoke these functions. Without a list: all functions.

        Raises OptionsError for an unknown function.
        """
        wanted = list(self.functions if functions is None else functions)
        for name in wanted:
            if name not in self.functions:
                raise OptionsError(f"Tally has no function {name!r}: give some of {', '.join(self.functions)}")
        return iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["lambda:InvokeFunction"],
            resource_arns=[self.functions[name].function_arn for name in wanted],
        )

    def grant_count(self, function: lambda_.Function, *, variable: str = "TALLY_FUNCTIONS") -> None:
        """Let a function count with `tally.client`, whose `from_environment` reads the variable.

        A second call with the same variable adds nothing. Raises OptionsError if another Tally has set the variable.
        """
        if not self._claim_variable(function, variable):
            return
        self.grant(function)
        arns = {name: alias.function_arn for name, alias in self.functions.items()}
        function.add_environment(variable, Stack.of(function).to_json_string(arns))

    def grant_transact(
        self, function: lambda_.Function, counters: Iterable[str], *, variable: str = "TALLY_TRANSACT"
    ) -> None:
        """Let a function change these counters in one transaction with its own items (`tally.transact`).

        A second call adds counters. The function gets the rights of `POST /changes`. A deploy updates the function
        after the consumers, which must know the counters first. The variable has the tables and the declarations, so
        the function counts as Tally does. The team grants the rights on its own tables.

        Raises OptionsError for an unknown counter, for a counter whose changes cannot be part of a batch, and if
        another Tally has set the variable.
        """
        batchable = {name: counter for name, counter in self._declarations.counters.items() if counter.is_batchable}
        names = [counters] if isinstance(counters, str) else list(counters)
        wrong = [name for name in names if name not in batchable]
        if wrong or not names:
            what = f"{wrong[0]!r}, which cannot be part of a batch" if wrong else "no counter"
            raise OptionsError(f"grant_transact got {what}: give some of {', '.join(batchable)}")
        self._claim_variable(function, variable)
        granted = self._transact_counters.setdefault((function.node.path, variable), {})
        wanted = {name: batchable[name] for name in names}
        granted.update(wanted)
        for statement in policy_statements(self.tables, needs.to_change_batch(wanted.values())):
            function.add_to_role_policy(statement)
        value = transact_variable(granted.values(), self._functions.surroundings)
        function.add_environment(variable, Stack.of(function).to_json_string(value))
        self._streams.deploy_before([function])

    def _claim_variable(self, function: lambda_.Function, variable: str) -> bool:
        """Returns whether the variable of the function is new. Raises OptionsError if another Tally has set it."""
        child_id, path = f"Tally:{variable}", function.node.path
        if (path, variable) in self._claimed_variables:
            return False
        if function.node.try_find_child(child_id):
            instead = "give variable=… here, and the same to from_environment(variable=…)"
            raise OptionsError(f"{path} already counts with another Tally by {variable}: {instead}")
        self._claimed_variables.add((path, variable))
        Construct(function, child_id)  # an empty child, which shows another Tally that the variable is taken
        return True

    def _build(self, bundle: Bundle) -> None:
        names, declarations, options = self._names, self._declarations, self._options
        keeps_data = options.keeps_data
        schemas = table_schemas(declarations.counters.values())
        tables = Tables(self, "Tables", names=names, options=options, schemas=schemas)
        days = options.dead_letter_days
        dead_letters = DeadLetters(self, "DeadLetters", names=names, keeps_data=keeps_data, expires_days=days)
        functions = Functions(
            self,
            "Functions",
            names=names,
            declarations=declarations,
            bundle=bundle,
            tables=tables,
            team_tables=self._team_tables,
            dead_letters=dead_letters,
            event_bus=EventBus(self, "Events", names=names, arn=options.event_bus) if declarations.notifies else None,
            options=options,
        )
        streams = Streams(
            self,
            "Streams",
            declarations=declarations,
            tables=tables,
            team_tables=self._team_tables,
            consumers=functions.consumers,
        )
        streams.deploy_before(functions.writers)  # so that consumers know a counter before a function counts it
        routes, aliases = declarations.routes_by_function, functions.aliases
        api = Api(self, "Api", names=names, routes_by_function=routes, aliases=aliases, options=options)
        failed_events = FailedEvents(self, "FailedEvents", functions=routes, aliases=aliases, keeps_data=keeps_data)
        self.tables, self.api, self.url = tables, api.api, api.url
        self.functions = {name: alias for name, alias in aliases.items() if not name.endswith(STRANGERS_SUFFIX)}
        self._functions, self._streams = functions, streams
        self._configure_console(api)
        self._add_outputs(api)
        self._add_operations(Parts(tables, functions, api, failed_events), dead_letters)

    def _add_operations(self, parts: Parts, dead_letters: DeadLetters) -> None:
        """Adds what operators use: alarms and dashboard, canary, copies of the tables, and a policy for operators."""
        names, declarations, options = self._names, self._declarations, self._options
        monitoring = Monitoring(
            self, "Monitoring", names=names, declarations=declarations, parts=parts, options=options
        )
        self.alarm_topic = topic = monitoring.topic
        if options.canary:
            metrics, busy = TallyMetrics(names, declarations), self._functions.busy
            versions = {module: observe.version_of(self._functions.version, module) for module in busy}
            failed = {module: metrics.by_version(observe.FAILED, version) for module, version in versions.items()}
            Canary(self, "Canary", names=names, aliases=busy, failed=failed, topic=topic)
        if options.backup_to:
            Backup(self, "Backup", names=names, tables=self.tables, vault_arn=options.backup_to, topic=topic)
        queue, sweep = parts.failed_events.queue, self._functions.background["sweep"]
        for_runbook = runbook_statements(queue, self._streams, sweep, topic)
        operator = Operator(
            self,
            "Operator",
            needs=operator_needs(declarations.counters),
            tables=self.tables,
            dead_letters=dead_letters,
            extra_statements=[*self._team_tables.scan_statements, *for_runbook],
        )
        bucket = dead_letters.bucket.bucket_name
        self._output("DeadLetterBucketName", bucket, "The bucket of dead letters: records that no consumer could apply")
        self._output("FailedEventsQueueUrl", queue.queue_url, "The queue of asynchronous events that Lambda gave up")
        self._output("OperatorPolicyArn", operator.policy.managed_policy_arn, "Attach it to the people who run `tally`")
        self._output("AlarmTopicArn", topic.topic_arn, "Subscribe to this topic: it gets every alarm")
        self._output("DashboardName", monitoring.dashboard_name, "The dashboard, in CloudWatch")

    def _configure_console(self, api: Api) -> None:
        """Gives the functions the console's settings. Call it after the API is made, because the settings name it."""
        stack, stage = Stack.of(self), self._options.stage
        facts = {"stage": stage, "stack": self._names.stack, "region": Aws.REGION, "docs": self._options.docs_url}
        config = stack.to_json_string({**facts, "sign_in": api.sign_in, "try_it": False})
        client = api.users.console_client.user_pool_client_id if api.users else ""  # "": no user pool
        for module, routes in self._declarations.routes_by_function.items():
            self._functions.add_variables(module, console_variables(module, routes, config, client))

    def _add_outputs(self, api: Api) -> None:
        """Adds the outputs that the command `tally` and callers read."""
        options, surroundings = self._options, self._functions.surroundings
        self._output("Stage", options.stage, "The stage: any other than dev keeps its data")
        self._output("Version", self._functions.version, "The version of the functions' code, as in GET /health")
        self._output("Runtime", RUNTIME.name, "The runtime of the functions")
        self._output(
            "StorageFormat", str(FORMAT), "The storage format: the command tally refuses a stack of another format"
        )
        self._output("Counters", ", ".join(self._declarations.counters), "The declared counters")
        if surroundings.event_bus:
            self._output("EventBusArn", surroundings.event_bus, "The event bus that gets the threshold events")
        if self._team_tables.by_name:
            self._output("TeamTables", team_tables_json(surroundings), "The team's tables whose items Tally counts")
        self._output("ApiUrl", api.url, "The address of the HTTP API")
        self._output("ConsoleUrl", api.console_url, "The address of the console")
        if api.domain:
            self._output("CnameTarget", api.domain.regional_domain_name, f"Set a CNAME of {options.api_name} to this")
        no_hosts = "none: POST /visits refuses every page; deploy with -c pageHosts=example.com"
        self._output("PageHosts", ", ".join(options.page_hosts) or no_hosts, "Hosts whose pages may be counted")
        if users := api.users:
            tokens = f"{users.domain_url}/oauth2/token"
            self._output("UserPoolId", users.pool.user_pool_id, "The Cognito user pool")
            self._output("UserPoolClientId", users.client.user_pool_client_id, "The audience of the tokens of users")
            self._output("MachineClientId", users.machine_client.user_pool_client_id, "The client of programs")
            self._output("TokenUrl", tokens, "Where programs get tokens: grant_type=client_credentials")
        for table, resource in self.tables.by_name.items():
            self._output(f"{table.value.capitalize()}TableName", resource.table_name, f"The {table.value} table")
        for module, alias in self.functions.items():
            self._output(f"{camel(module)}FunctionArn", alias.function_arn, f"Invoke this for {module}")
        arns = [alias.function_arn for alias in self.functions.values()]
        invoke = iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=arns)
        about = "Lets a role invoke Tally's functions"
        policy = iam.ManagedPolicy(self, "InvokePolicy", description=about, statements=[invoke])
        self._output("InvokePolicyArn", policy.managed_policy_arn, "Attach it to a role that invokes the functions")

    def _output(self, name: str, value: str, description: str) -> None:
        output = CfnOutput(self, name, value=value, description=description)
        output.override_logical_id(self._names.logical_id(name))  # programs read outputs by this id
