"""The HTTP API: routes, who may call them, how often, and what is logged of it."""

from __future__ import annotations

import json

import jsii
from aws_cdk import Acknowledgment, Duration, RemovalPolicy, Validations
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_apigatewayv2 as http
from aws_cdk import aws_apigatewayv2_authorizers as authorizers
from aws_cdk import aws_apigatewayv2_integrations as integrations
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

import operations
from tally.operation import Access, Operation

from .options import Options
from .users import Users

CORS_HEADERS = ["authorization", "content-type", "idempotency-key", "if-match"]
CORS_EXPOSED = ["ETag", "Idempotency-Replayed", "Retry-After"]
CORS_MAX_AGE = Duration.days(1)  # browsers keep a preflight for a day at most
DEFAULT_RATE_PER_S, DEFAULT_BURST = 10, 20  # of a route without a throttle of its own: none should be
ACCESS_LOG_RETENTION = logs.RetentionDays.ONE_MONTH
# Nothing that a caller writes (path, query, user agent) is in the line: it can neither break the JSON nor leak.
ACCESS_LOG_FIELDS = {
    "requestId": "$context.requestId",
    "time": "$context.requestTime",
    "ip": "$context.identity.sourceIp",
    "route": "$context.routeKey",
    "status": "$context.status",
    "bytes": "$context.responseLength",
    "tookMs": "$context.responseLatency",
    "functionMs": "$context.integrationLatency",
    "functionError": "$context.integrationErrorMessage",
    "error": "$context.error.message",
    "authorizerError": "$context.authorizer.error",
}


@jsii.implements(http.IAccessLogSettings)
class AccessLogs:
    """Access logs as JSON, in a log group."""

    def __init__(self, log_group: logs.LogGroup) -> None:
        self._destination = http.LogGroupLogDestination(log_group)
        self._format = apigateway.AccessLogFormat.custom(json.dumps(ACCESS_LOG_FIELDS))

    @property
    def destination(self) -> http.IAccessLogDestination:
        """Where lines go."""
        return self._destination

    @property
    def format(self) -> apigateway.AccessLogFormat:
        """What a line holds."""
        return self._format


class Api(Construct):
    """The HTTP API of all operations, with its stage and authorizer; `users` if the stack makes a pool."""

    api: http.HttpApi
    users: Users | None = None

    def __init__(self, scope: Construct, id: str, *, aliases: dict[str, lambda_.Alias], options: Options) -> None:
        super().__init__(scope, id)
        self._options = options
        self.api = http.HttpApi(
            self,
            "Http",
            api_name=f"Tally-{options.stage}",
            create_default_stage=False,
            cors_preflight=http.CorsPreflightOptions(
                allow_origins=list(options.cors_origins),
                allow_methods=[
                    http.CorsHttpMethod[method]
                    for method in sorted({operation.method for operation in operations.OPERATIONS})
                ],
                allow_headers=CORS_HEADERS,
                expose_headers=CORS_EXPOSED,
                max_age=CORS_MAX_AGE,
            ),
        )
        authorizer = self._authorizer()
        bound = {
            module: integrations.HttpLambdaIntegration(module.capitalize(), alias) for module, alias in aliases.items()
        }
        routes = [self._route(operation, bound[operation.function], authorizer) for operation in operations.OPERATIONS]
        self.stage = self._stage(routes)

    def _authorizer(self) -> http.IHttpRouteAuthorizer:
        if self._options.issuer:
            return authorizers.HttpJwtAuthorizer("Jwt", self._options.issuer, jwt_audience=list(self._options.audience))
        self.users = Users(self, "Users", stage=self._options.stage, keeps_data=self._options.keeps_data)
        return authorizers.HttpJwtAuthorizer(
            "Jwt",
            self.users.pool.user_pool_provider_url,
            jwt_audience=[self.users.client.user_pool_client_id, self.users.machines.user_pool_client_id],
        )

    def _route(
        self,
        operation: Operation,
        integration: integrations.HttpLambdaIntegration,
        authorizer: http.IHttpRouteAuthorizer,
    ) -> http.HttpRoute:
        [route] = self.api.add_routes(
            path=operation.path,
            methods=[http.HttpMethod[operation.method]],
            integration=integration,
            authorizer=authorizer if operation.needs_caller else None,
            authorization_scopes=[operation.scope] if operation.scope else None,
        )
        if operation.access is Access.ANYONE:
            Validations.of(route).acknowledge(
                Acknowledgment(
                    id="AwsSolutions-APIG4",
                    reason=f"{operation.name} is for anyone, by contract: its input is checked, its rate is throttled",
                )
            )
        return route

    def _stage(self, routes: list[http.HttpRoute]) -> http.HttpStage:
        log_group = logs.LogGroup(
            self,
            "AccessLogs",
            retention=ACCESS_LOG_RETENTION,
            removal_policy=RemovalPolicy.RETAIN if self._options.keeps_data else RemovalPolicy.DESTROY,
        )
        stage = http.HttpStage(
            self,
            "Stage",
            http_api=self.api,
            stage_name="$default",
            auto_deploy=True,
            detailed_metrics_enabled=False,
            throttle=http.ThrottleSettings(rate_limit=DEFAULT_RATE_PER_S, burst_limit=DEFAULT_BURST),
            access_log_settings=AccessLogs(log_group),
        )
        # The construct knows no throttle of a route. The keys are CloudFormation's, and only a test checks them.
        resource = stage.node.default_child
        assert isinstance(resource, http.CfnStage)
        resource.route_settings = {
            operation.route: {
                "ThrottlingRateLimit": operation.throttle.rate_per_s,
                "ThrottlingBurstLimit": operation.throttle.burst,
            }
            for operation in operations.OPERATIONS
        }
        stage.node.add_dependency(*routes)  # a stage may only name routes that are there
        return stage
