"""The HTTP API: routes, who may call them and how often, and the access log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from aws_cdk import Acknowledgment, Duration, RemovalPolicy, Validations
from aws_cdk import aws_apigatewayv2 as http
from aws_cdk import aws_apigatewayv2_authorizers as authorizers
from aws_cdk import aws_apigatewayv2_integrations as integrations
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from tally.api.operation import Access, Route
from tally.contract.deployment import ACCESS_LOG_FIELDS, CORS_EXPOSED, CORS_HEADERS, CORS_MAX_AGE_S, cors_methods
from tally.operations.console import get_console

from .domain import create_custom_domain
from .names import Names, camel
from .options import Options
from .users import Users

DEFAULT_RATE_PER_S, DEFAULT_BURST = 10, 20  # of a route without its own throttle; each route of Tally has one
ACCESS_LOG_RETENTION = logs.RetentionDays.ONE_MONTH


class Api(Construct):
    """The HTTP API of all operations, with its stage and authorizer."""

    api: http.HttpApi
    domain: http.DomainName | None
    throttled_requests: logs.MetricFilter
    """Counts the requests that a throttle refused, from the access log. AWS's own metric counts every 4xx."""
    users: Users | None = None  # None with the option `issuer`

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        names: Names,
        routes_by_function: Mapping[str, Sequence[Route]],
        aliases: Mapping[str, lambda_.Alias],
        options: Options,
    ) -> None:
        super().__init__(scope, id)
        self._names = names
        self._options = options
        module_by_key = {route.key: module for module, routes in routes_by_function.items() for route in routes}
        routes = [route for routes in routes_by_function.values() for route in routes]
        self.api = http.HttpApi(
            self,
            "Http",
            api_name=names.base,
            create_default_stage=False,
            disable_execute_api_endpoint=bool(options.domain_name),  # callers must not bypass a CDN of the domain
            cors_preflight=http.CorsPreflightOptions(
                allow_origins=list(options.cors_origins),
                allow_methods=[http.CorsHttpMethod[method] for method in cors_methods(routes)],
                allow_headers=CORS_HEADERS,
                expose_headers=CORS_EXPOSED,
                max_age=Duration.seconds(CORS_MAX_AGE_S),
            ),
        )
        authorizer = self._make_authorizer()
        targets = {
            # One permission for all routes of a function. A permission for each route would add 60 resources.
            module: integrations.HttpLambdaIntegration(camel(module), alias, scope_permission_to_route=False)
            for module, alias in aliases.items()
        }
        self._deployed_routes = [one for route in routes if (one := route.as_deployed(options.likers_visible))]
        http_routes = [
            http_route
            for route in self._deployed_routes
            for http_route in self._add_route(route, targets[module_by_key[route.key]], authorizer)
        ]
        self.stage = self._add_stage(http_routes)
        self.domain = create_custom_domain(self, options, self.api, self.stage) if options.domain_name else None

    @property
    def url(self) -> str:
        """The address of the API for callers."""
        return self._options.url or self.api.api_endpoint

    @property
    def console_url(self) -> str:
        """The address of the console."""
        return self.url + get_console.path

    @property
    def sign_in(self) -> dict[str, str]:
        """The settings with which the console signs people in."""
        if self.users is None:
            return {"kind": "token"}  # a person enters a token of the issuer
        client = self.users.console_client.user_pool_client_id
        return {"kind": "pkce", "domain": self.users.domain_url, "client_id": client, "redirect": self.console_url}

    def busiest_per_s(self, *, only_writes: bool = False) -> int:
        """Returns the highest throttle of a route (`only_writes`: that writes), in requests a second; 0: no route."""
        routes = [route for route in self._deployed_routes if route.operation.writes or not only_writes]
        return max((route.throttle.scaled_by(self._options.throttle).rate_per_s for route in routes), default=0)

    def _make_authorizer(self) -> http.IHttpRouteAuthorizer:
        if self._options.issuer:
            return authorizers.HttpJwtAuthorizer("Jwt", self._options.issuer, jwt_audience=list(self._options.audience))
        self.users = Users(self, "Users", names=self._names, options=self._options, console_url=self.console_url)
        return authorizers.HttpJwtAuthorizer(
            "Jwt",
            self.users.pool.user_pool_provider_url,
            jwt_audience=[
                client.user_pool_client_id
                for client in (self.users.client, self.users.machine_client, self.users.console_client)
            ],
        )

    def _add_route(
        self, route: Route, integration: integrations.HttpLambdaIntegration, authorizer: http.IHttpRouteAuthorizer
    ) -> list[http.HttpRoute]:
        http_routes = self.api.add_routes(
            path=route.path,
            methods=[http.HttpMethod[method] for method in route.methods],
            integration=integration,
            authorizer=authorizer if route.needs_caller else None,
            authorization_scopes=[route.scope] if route.scope else None,
        )
        for http_route in http_routes if route.access is Access.ANYONE else ():
            Validations.of(http_route).acknowledge(
                Acknowledgment(
                    id="AwsSolutions-APIG4",
                    reason=f"{route.id} is for anyone, by contract: its input is checked, its rate is throttled",
                )
            )
        return http_routes

    def _add_stage(self, routes: list[http.HttpRoute]) -> http.HttpStage:
        log_group = logs.LogGroup(
            self,
            "AccessLogs",
            log_group_name=self._names.access_log,
            retention=ACCESS_LOG_RETENTION,
            removal_policy=RemovalPolicy.RETAIN if self._options.keeps_data else RemovalPolicy.DESTROY,
        )
        self.throttled_requests = logs.MetricFilter(
            self,
            "Refused",
            log_group=log_group,
            filter_pattern=logs.FilterPattern.string_value("$.status", "=", "429"),
            metric_namespace=self._names.base,
            metric_name="Throttled",
            metric_value="1",
        )
        stage = http.HttpStage(
            self,
            "Stage",
            http_api=self.api,
            stage_name="$default",
            auto_deploy=True,
            detailed_metrics_enabled=False,
            throttle=http.ThrottleSettings(rate_limit=DEFAULT_RATE_PER_S, burst_limit=DEFAULT_BURST),
        )
        resource = stage.node.default_child
        assert isinstance(resource, http.CfnStage)
        resource.access_log_settings = http.CfnStage.AccessLogSettingsProperty(
            destination_arn=log_group.log_group_arn, format=json.dumps(ACCESS_LOG_FIELDS)
        )
        # CDK's construct has no throttle for a route, and checks none of these keys, which are CloudFormation's.
        resource.route_settings = {
            key: {"ThrottlingRateLimit": throttle.rate_per_s, "ThrottlingBurstLimit": throttle.burst}
            for route in self._deployed_routes
            for key in route.keys
            for throttle in [route.throttle.scaled_by(self._options.throttle)]
        }
        stage.node.add_dependency(*routes)  # otherwise AWS rejects the throttle of a route that does not exist yet
        return stage
