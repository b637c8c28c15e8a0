"""Tally, put together from its constructs, and the stack of one stage that holds it."""

from __future__ import annotations

from aws_cdk import Aws, CfnOutput, Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from api.operation import OPEN
from declarations import Declarations
from tally import observe
from tally.dynamo.keys import FORMAT

from .api import Api
from .backup import Backup
from .budget import Budget
from .bundling import Bundle
from .canary import Canary
from .dead_letters import DeadLetters
from .failed_events import FailedEvents
from .functions import RUNTIME, Functions
from .metrics import OwnMetrics
from .monitoring import Monitoring, Parts
from .names import Names, camel, stack_name
from .operator import Operator, Runbooks, operator_needs
from .options import Options
from .streams import Streams
from .tables import Tables


class TallyStack(Stack):
    """Tally of one stage. It names no account or region: the credentials decide where it goes."""

    def __init__(
        self, scope: Construct, id: str, *, declarations: Declarations, options: Options, bundle: Bundle
    ) -> None:
        super().__init__(
            scope,
            id,
            stack_name=stack_name(options.stage),
            description="Tally: counting on DynamoDB that is right after retries, crashes and viral posts",
            termination_protection=options.keeps_data,
        )
        Tally(self, declarations=declarations, options=options, bundle=bundle)


class Tally:
    """Tables, functions, HTTP API, alarms, and the outputs that name them.

    `scope` is the stack, or a construct in it for a stack that holds more than Tally. Names and logical ids follow its
    path in the stack; a construct named `Default` leaves them as they are in a stack of Tally's own.
    """

    def __init__(self, scope: Construct, *, declarations: Declarations, options: Options, bundle: Bundle) -> None:
        self._scope = scope
        names = Names.of(scope)
        tables = Tables(scope, "Tables", names=names, options=options)
        dead_letters = DeadLetters(
            scope, "DeadLetters", names=names, keeps_data=options.keeps_data, expires_days=options.dead_letter_days
        )
        functions = Functions(
            scope,
            "Functions",
            names=names,
            declarations=declarations,
            bundle=bundle,
            tables=tables,
            dead_letters=dead_letters,
            options=options,
        )
        streams = Streams(scope, "Streams", declarations=declarations, tables=tables, consumers=functions.consumers)
        streams.precede(functions.writers)
        api = Api(scope, "Api", names=names, served=declarations.functions, aliases=functions.aliases, options=options)
        self._tell_of_console(functions, declarations, api, names, options)
        failed_events = FailedEvents(
            scope,
            "FailedEvents",
            functions=declarations.functions,
            aliases=functions.aliases,
            keeps_data=options.keeps_data,
        )
        parts = Parts(tables, functions, api, failed_events)
        monitoring = Monitoring(
            scope,
            "Monitoring",
            names=names,
            declarations=declarations,
            parts=parts,
            options=options,
        )
        if options.canaries:
            failed = OwnMetrics(names, declarations).by_version(observe.FAILED, functions.version)
            Canary(scope, "Canary", names=names, aliases=functions.busy, failed=failed, topic=monitoring.topic)
        if options.budget_usd:
            Budget(scope, "Budget", names=names, usd=options.budget_usd, email=options.budget_email)
        if options.backup_to:
            vault, topic = options.backup_to, monitoring.topic
            Backup(scope, "Backup", names=names, tables=tables, vault_arn=vault, topic=topic)
        operator = Operator(
            scope,
            "Operator",
            needs=operator_needs(declarations.counters),
            tables=tables,
            dead_letters=dead_letters,
            runbooks=Runbooks(failed_events.queue, streams.mappings, functions.unattended["sweep"], monitoring.topic),
        )
        self._name_what_is_deployed(functions, declarations, options)
        self._name_what_callers_use(tables, functions, api, options)
        self._name_what_operators_use(dead_letters, failed_events, monitoring, operator)

    def _tell_of_console(
        self, functions: Functions, declarations: Declarations, api: Api, names: Names, options: Options
    ) -> None:
        """What `/console/config.json` says; and whose tokens are those of people, to functions that scopes guard."""
        known = {"stage": options.stage, "stack": names.stack, "region": Aws.REGION, "sign_in": api.sign_in}
        config = Stack.of(self._scope).to_json_string({**known, "try_it": False})
        functions.tell(["console"], "TALLY_CONSOLE", config)
        if api.users:
            guarded = [module for module, found in declarations.functions.items() if any(one.scope for one in found)]
            functions.tell(guarded, "TALLY_CONSOLE_CLIENT", api.users.console.user_pool_client_id)

    def _name_what_is_deployed(self, functions: Functions, declarations: Declarations, options: Options) -> None:
        self._output("Stage", options.stage, "The stage: any other than dev keeps its data")
        self._output("Version", functions.version, "The code that the functions run, as GET /health says it")
        self._output("Runtime", RUNTIME.name, "What the functions run on")
        self._output(
            "Format", str(FORMAT), "The form of what is stored: a Tally of another one refuses to work with it"
        )
        self._output("Counters", ", ".join(declarations.counters), "The counters that are declared")

    def _name_what_callers_use(self, tables: Tables, functions: Functions, api: Api, options: Options) -> None:
        self._output("ApiUrl", api.url, "Where the HTTP API answers")
        self._output("ConsoleUrl", api.console_url, "Where people look at the numbers")
        if api.domain:
            self._output("CnameTarget", api.domain.regional_domain_name, f"Set a CNAME of {options.api_name} to this")
        hosts = (
            ", ".join(options.page_hosts)
            or "none: POST /visits refuses every page; deploy with -c pageHosts=example.com"
        )
        self._output("PageHosts", hosts, "Hosts whose pages may be counted")
        if api.users:
            self._output("UserPoolId", api.users.pool.user_pool_id, "The Cognito pool of those who sign in")
            self._output("UserPoolClientId", api.users.client.user_pool_client_id, "The audience of their tokens")
            self._output("MachineClientId", api.users.machines.user_pool_client_id, "The client of programs that count")
            self._output(
                "TokenUrl",
                f"{api.users.domain_url}/oauth2/token",
                "Where programs get tokens: grant_type=client_credentials",
            )
        for table, made in tables.by_name.items():
            self._output(f"{table.value.capitalize()}TableName", made.table_name, f"The {table.value} table")
        invoked = {name: alias for name, alias in functions.aliases.items() if not name.endswith(OPEN)}
        for module, alias in invoked.items():
            self._output(f"{camel(module)}FunctionArn", alias.function_arn, f"Invoke this for {module}")
        policy = iam.ManagedPolicy(
            self._scope,
            "InvokePolicy",
            description="Lets a role invoke Tally's functions",
            statements=[
                iam.PolicyStatement(
                    actions=["lambda:InvokeFunction"],
                    resources=[alias.function_arn for alias in invoked.values()],
                )
            ],
        )
        self._output("InvokePolicyArn", policy.managed_policy_arn, "Attach it to a role that invokes the functions")

    def _name_what_operators_use(
        self,
        dead_letters: DeadLetters,
        failed_events: FailedEvents,
        monitoring: Monitoring,
        operator: Operator,
    ) -> None:
        self._output("DeadLetterBucketName", dead_letters.bucket.bucket_name, "Records that no consumer could apply")
        self._output("FailedEventsUrl", failed_events.queue.queue_url, "Asynchronous events that Lambda gave up")
        self._output("OperatorPolicyArn", operator.policy.managed_policy_arn, "Attach it to those who run `tally`")
        self._output("AlarmTopicArn", monitoring.topic.topic_arn, "Subscribe to this: every alarm goes there")
        self._output("DashboardName", monitoring.dashboard_name, "The dashboard, in CloudWatch")

    def _output(self, name: str, value: str, description: str) -> None:
        CfnOutput(self._scope, name, value=value, description=description)
