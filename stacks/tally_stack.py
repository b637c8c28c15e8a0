"""The stack: tables, functions and the HTTP API, and what it tells of itself when it is deployed."""

from __future__ import annotations

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from .api import Api
from .budget import Budget
from .dead_letters import DeadLetters
from .functions import Functions
from .monitoring import Monitoring, Parts
from .operator import Operator
from .options import Options
from .set_aside import SetAside
from .streams import Streams
from .tables import Tables


class TallyStack(Stack):
    """Tally of one stage. It names no account or region: it is deployed where the credentials say."""

    def __init__(self, scope: Construct, id: str, options: Options) -> None:
        super().__init__(
            scope,
            id,
            stack_name=f"Tally-{options.stage}",
            description="Tally: counting on DynamoDB that is right after retries, crashes and viral posts",
            termination_protection=options.keeps_data,
        )
        tables = Tables(self, "Tables", options=options)
        set_aside = SetAside(self, "SetAside", keeps_data=options.keeps_data)
        functions = Functions(self, "Functions", tables=tables, set_aside=set_aside, options=options)
        Streams(self, "Streams", tables=tables, consumers=functions.consumers)
        api = Api(self, "Api", aliases=functions.aliases, options=options)
        dead_letters = DeadLetters(self, "DeadLetters", aliases=functions.aliases, keeps_data=options.keeps_data)
        parts = Parts(tables, functions, api, dead_letters)
        monitoring = Monitoring(self, "Monitoring", parts=parts, alarm_email=options.alarm_email)
        if options.budget_usd and options.budget_email:
            Budget(self, "Budget", usd=options.budget_usd, email=options.budget_email)
        self._tell(tables, functions, api, options)
        self._output("SetAsideBucketName", set_aside.bucket.bucket_name, "Records that no consumer could apply")
        self._output("SettleSeconds", str(options.settle_s), "How old a minute of the ledger is before it is judged")
        self._output("DeadLetterQueueUrl", dead_letters.queue.queue_url, "Asynchronous events that Lambda gave up")
        operator = Operator(self, "Operator", tables=tables, set_aside=set_aside)
        self._output("OperatorPolicyArn", operator.policy.managed_policy_arn, "Attach it to those who run `tally`")
        self._output("AlarmTopicArn", monitoring.topic.topic_arn, "Subscribe to this: every alarm goes there")
        self._output("DashboardName", monitoring.dashboard_name, "The dashboard, in CloudWatch")

    def _tell(self, tables: Tables, functions: Functions, api: Api, options: Options) -> None:
        self._output("ApiUrl", api.api.api_endpoint, "Where the HTTP API answers")
        hosts = (
            ", ".join(options.page_hosts)
            or "none: POST /visits refuses every page; deploy with -c pageHosts=example.com"
        )
        self._output("PageHosts", hosts, "Hosts whose pages may be counted")
        if api.users:
            self._output("UserPoolId", api.users.pool.user_pool_id, "The Cognito pool of those who sign in")
            self._output("UserPoolClientId", api.users.client.user_pool_client_id, "The audience of their tokens")
            self._output("MachineClientId", api.users.machines.user_pool_client_id, "The client of programs that count")
            self._output("TokenUrl", api.users.token_url, "Where programs get tokens: grant_type=client_credentials")
        for name, table in (("Counts", tables.counts), ("Receipts", tables.receipts), ("Ledger", tables.ledger)):
            self._output(f"{name}TableName", table.table_name, f"The {name.lower()} table")
        for module, alias in functions.aliases.items():
            self._output(f"{module.capitalize()}FunctionArn", alias.function_arn, f"Invoke this for {module}")
        policy = iam.ManagedPolicy(
            self,
            "InvokePolicy",
            description="Lets a role invoke Tally's functions",
            statements=[
                iam.PolicyStatement(
                    actions=["lambda:InvokeFunction"],
                    resources=[alias.function_arn for alias in functions.aliases.values()],
                )
            ],
        )
        self._output("InvokePolicyArn", policy.managed_policy_arn, "Attach it to a role that invokes the functions")

    def _output(self, name: str, value: str, description: str) -> None:
        CfnOutput(self, name, value=value, description=description)
