"""The HTTP API: its routes, their callers and throttles, sign-in, and the access log."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from tally.api.operation import READS, Access, UserVisibility
from tally.dev.gateway.gateway import LogEntry
from tally.operations.children import list_children
from tests.infra.conftest import DECLARED
from tests.infra.template import Json, Template, as_text

SCHEDULED = [schedule.function for schedule in DECLARED.schedules]
ROUTES = DECLARED.routes


def stage(template: Template) -> Json:
    return template.only("AWS::ApiGatewayV2::Stage")


def test_no_route_hides_a_tally_of_another_route() -> None:
    """API Gateway takes the most specific route, so `/counters/{counter}/top` would hide the tally `top`."""
    for route in (route for route in ROUTES if route.path.endswith("/{id}")):
        start = re.escape(route.path.removesuffix("{id}"))
        assert not [other.key for other in ROUTES if re.fullmatch(f"{start}[^/{{]+", other.path)], route.key


def test_only_the_api_or_a_schedule_may_invoke_a_function_and_only_by_the_alias(dev: Template) -> None:
    """test_described.py checks which function each route reaches."""
    principals = {"apigateway.amazonaws.com": DECLARED.routes_by_function.keys(), "events.amazonaws.com": SCHEDULED}
    functions, invoked_by_api = dev.functions(), []
    rule_arn = {"Fn::GetAtt": [dev.only_name("AWS::Events::Rule"), "Arn"]}
    for permission in dev.of_type("AWS::Lambda::Permission").values():
        properties = permission["Properties"]
        aliases = {dev.alias_of(functions[name]): name for name in principals[properties["Principal"]]}
        name = aliases[properties["FunctionName"]["Ref"]]
        if properties["Principal"] == "apigateway.amazonaws.com":
            invoked_by_api.append(name)
            any_route = [{"Ref": dev.only_name("AWS::ApiGatewayV2::Api")}, "/*/*/*"]
            assert properties["SourceArn"]["Fn::Join"][1][-2:] == any_route, "of this API, and of no other API"
        else:
            assert properties["SourceArn"] == rule_arn
    assert sorted(invoked_by_api) == sorted(DECLARED.routes_by_function)


def test_each_integration_keeps_its_logical_id(dev: Template) -> None:
    """CDK names an integration by the first route of its function, and adds a hash of eight characters. If a new route
    came first, CloudFormation would replace the integration."""
    names = {name.removeprefix("ApiHttp")[:-8] for name in dev.of_type("AWS::ApiGatewayV2::Integration")}
    assert names == {
        "GETconsoleConsole", "GETcounterscounteridReads", "PUTcounterscounteridmineChildrenOpen", "GETdriftDrift",
        "GEThealthHealth", "GETreceiptsReceipts", "GETseriesSeries", "POSTchangesChanges",
        "POSTcounterscounteridholdsHolds", "POSTcounterscounteridincrementsIncrements",
        "POSTcountersplaysidincrementsIncrementsOpen", "POSTvisitsVisits", "PUTcounterscounteridchildChildren",
        "PUTpostsidPosts",
    }  # fmt: skip


def test_a_deployment_may_restrict_a_list_of_children_that_anyone_may_read(
    dev: Template, lavish: Template, behind_cdn: Template
) -> None:
    """No built-in counter has such a list. `health` serves the OpenAPI document, so this function has the option."""
    hearts = replace(DECLARED.counters["hearts"], lists="anyone")
    routes = {route.id: route for route in list_children.routes({"hearts": hearts})}
    likers = routes["list_children_hearts"]
    assert (likers.as_deployed(UserVisibility.ANYONE), likers.access) == (likers, Access.ANYONE)
    restricted = map(likers.as_deployed, (UserVisibility.SIGNED_IN, UserVisibility.NOBODY))
    assert [route and route.access for route in restricted] == [Access.SIGNED_IN, None]
    for template in (dev, lavish, behind_cdn):
        assert stage(template)["RouteSettings"].keys() == template.routes().keys(), "an unknown route fails the deploy"
    assert_health_has_likers_option(lavish, "signedIn")
    assert_health_has_likers_option(behind_cdn, "nobody")


def assert_health_has_likers_option(template: Template, likers: str) -> None:
    properties = template.resources[template.functions()["health"]]["Properties"]
    assert properties["Environment"]["Variables"]["TALLY_LIKERS_VISIBLE"] == likers


# Written out a second time, to check the declarations. FOR_THE_CALLER: routes that need a token without a scope.
FOR_ANYONE = {
    "POST /counters/plays/{id}/increments", "POST /videos/{id}/plays", "GET /counters/plays/{id}",
    "GET /videos/{id}/plays", "GET /counters/likes/{id}", "GET /counters/hearts/{id}",
    "GET /counters/{counter}/{id}/badge.svg", "GET /tallies", "GET /posts/{id}", "POST /visits", "GET /visits",
    "GET /visits/badge.svg", "GET /receipts", "GET /series", "GET /console",
    "GET /console/{file}", "GET /console/config.json", "GET /client/{file}", "GET /health", "HEAD /health",
    "GET /openapi.json", "PUT /counters/{counter}/{id}/anonymous", "DELETE /counters/{counter}/{id}/anonymous",
    "GET /counters/{counter}/{id}/anonymous", "GET /anonymous",
}  # fmt: skip
FOR_THE_CALLER = {
    "PUT /counters/{counter}/{id}/mine", "DELETE /counters/{counter}/{id}/mine", "GET /counters/{counter}/{id}/mine",
    "GET /mine", "PUT /posts/{id}/like", "DELETE /posts/{id}/like", "GET /posts/{id}/like", "PUT /posts/{id}",
    "DELETE /posts/{id}", "GET /receipts/own",
}  # fmt: skip


def test_each_route_that_is_not_listed_here_needs_a_scope(dev: Template) -> None:
    routes = dev.routes()
    assert {key for key, route in routes.items() if route["AuthorizationType"] == "NONE"} == FOR_ANYONE
    authorizer = {"Ref": dev.only_name("AWS::ApiGatewayV2::Authorizer")}
    assert {key for key, route in routes.items() if route.get("AuthorizerId") != authorizer} == FOR_ANYONE
    scopes = {key: route.get("AuthorizationScopes") for key, route in routes.items() if key not in FOR_ANYONE}
    assert {key for key, route_scopes in scopes.items() if route_scopes is None} == FOR_THE_CALLER
    assert {key: route_scopes for key, route_scopes in scopes.items() if route_scopes} == {
        key: ["tally/read"] if key.startswith("GET ") else ["tally/write"] for key in scopes.keys() - FOR_THE_CALLER
    }


def test_the_api_takes_the_tokens_of_the_stacks_own_pool(dev: Template) -> None:
    clients = dev.of_type("AWS::Cognito::UserPoolClient")
    [machines] = [id_ for id_, resource in clients.items() if resource["Properties"].get("GenerateSecret")]
    [console] = [id_ for id_, resource in clients.items() if "CallbackURLs" in resource["Properties"]]
    [client] = clients.keys() - {machines, console}
    authorizer = dev.only("AWS::ApiGatewayV2::Authorizer")
    assert authorizer["AuthorizerType"] == "JWT"
    assert authorizer["IdentitySource"] == ["$request.header.Authorization"]
    assert authorizer["JwtConfiguration"] == {
        "Issuer": {"Fn::GetAtt": ["UserPool", "ProviderURL"]},
        "Audience": [{"Ref": client}, {"Ref": machines}, {"Ref": console}],
    }
    assert dev.outputs["UserPoolId"]["Value"] == {"Ref": "UserPool"}
    assert dev.outputs["UserPoolClientId"]["Value"] == {"Ref": client}
    assert dev.outputs["MachineClientId"]["Value"] == {"Ref": machines}
    assert clients[machines]["Properties"]["AllowedOAuthFlows"] == ["client_credentials"]
    # Without a list Cognito allows three flows. The listed flow needs a refresh token, which this client never gets.
    assert clients[machines]["Properties"]["ExplicitAuthFlows"] == ["ALLOW_REFRESH_TOKEN_AUTH"]


def console_client(template: Template) -> tuple[str, Json]:
    """Returns the pool's client for the console: its logical id and properties."""
    [id_and_properties] = [
        (id_, client["Properties"])
        for id_, client in template.of_type("AWS::Cognito::UserPoolClient").items()
        if "CallbackURLs" in client["Properties"]
    ]
    return id_and_properties


def test_people_sign_in_to_the_console_on_the_page_of_the_pool_with_a_code_and_no_secret(dev: Template) -> None:
    _, console = console_client(dev)
    assert console["AllowedOAuthFlows"] == ["code"]
    assert "GenerateSecret" not in console
    resource_server = dev.only_name("AWS::Cognito::UserPoolResourceServer")
    assert [*map(as_text, console["AllowedOAuthScopes"])] == ["openid", f"${{{resource_server}}}/read"]
    assert console["CallbackURLs"] == console["LogoutURLs"] == [dev.outputs["ConsoleUrl"]["Value"]]
    assert console["ExplicitAuthFlows"] == ["ALLOW_REFRESH_TOKEN_AUTH"]


def test_each_function_with_a_scope_knows_the_client_whose_tokens_are_of_people(dev: Template) -> None:
    """The console's client gives every user tally/read, so a function also checks the group of this client's users."""
    client, _ = console_client(dev)
    guarded = {name for name, routes in DECLARED.routes_by_function.items() if any(route.scope for route in routes)}
    for module, name in dev.functions().items():
        variables = dev.resources[name]["Properties"]["Environment"]["Variables"]
        assert variables.get("TALLY_CONSOLE_CLIENT") == ({"Ref": client} if module in guarded else None), module


def console_config(template: Template) -> Json:
    """Returns the content of `/console/config.json`. Logical ids replace references."""
    variables = template.resources[template.functions()["console"]]["Properties"]["Environment"]["Variables"]
    config: Json = json.loads(re.sub(r"\$\{([\w:]+)\}", r"\1", as_text(variables["TALLY_CONSOLE"])))
    return config


def test_the_console_knows_its_stack_and_where_to_sign_in(dev: Template, behind_cdn: Template) -> None:
    client, _ = console_client(dev)
    config = console_config(dev)
    sign_in = config.pop("sign_in")
    assert config == {"stage": "dev", "stack": "Tally-dev", "region": "AWS::Region", "try_it": False, "docs": "docs"}
    assert (sign_in["kind"], sign_in["client_id"]) == ("pkce", client)
    assert sign_in["domain"].startswith("https://")
    assert sign_in["domain"].endswith(".amazoncognito.com")
    assert sign_in["redirect"].endswith("/console")
    assert console_config(behind_cdn)["sign_in"] == {"kind": "token"}, "people enter a token of the team's issuer"
    assert not behind_cdn.of_type("AWS::Cognito::UserPool")
    assert "UserPoolId" not in behind_cdn.outputs


def test_every_route_has_its_throttle(dev: Template, prod: Template) -> None:
    def limits(rate_per_s: int, burst: int) -> Json:
        return {"ThrottlingRateLimit": rate_per_s, "ThrottlingBurstLimit": burst}

    assert stage(prod)["RouteSettings"] == {key: limits(*route.throttle) for route in ROUTES for key in route.keys}
    assert stage(dev)["RouteSettings"] == {
        key: limits(max(1, route.throttle.rate_per_s // 10), route.throttle.burst)
        for route in ROUTES
        for key in route.keys
    }
    lowest = min(route.throttle.rate_per_s for route in ROUTES), min(route.throttle.burst for route in ROUTES)
    assert stage(dev)["DefaultRouteSettings"] == {"DetailedMetricsEnabled": False, **limits(*lowest)}


def test_the_routes_of_receipts_have_the_highest_throttle() -> None:
    """After an hour offline, a client first asks whether its changes were counted. Strangers may ask, too."""
    throttles = {route.throttle for route in ROUTES if route.path.startswith("/receipts")}
    assert throttles == {READS} == {max(route.throttle for route in ROUTES)}


def test_the_stage_waits_for_the_routes_that_it_throttles(dev: Template) -> None:
    [name] = dev.of_type("AWS::ApiGatewayV2::Stage")
    assert set(dev.of_type("AWS::ApiGatewayV2::Route")) <= set(dev.resources[name]["DependsOn"])


def test_access_log_is_json_without_text_from_callers(dev: Template) -> None:
    """API Gateway writes `-` for a variable without a value, so the format has quotes around each variable."""
    settings = stage(dev)["AccessLogSettings"]
    group, attribute = settings["DestinationArn"]["Fn::GetAtt"]
    assert dev.resources[group]["Type"] == "AWS::Logs::LogGroup"
    assert attribute == "Arn"
    fields = json.loads(settings["Format"])
    without_error = LogEntry(values={"status": "503", "routeKey": "POST /visits"})
    assert json.loads(without_error.line(settings["Format"]))["error"] == "-"
    unauthorized = LogEntry(values={"status": "401", "error.message": 'a "quote"'})
    assert json.loads(unauthorized.line(settings["Format"]))["error"] == 'a "quote"'
    assert fields["requestId"] == "$context.requestId"
    assert {"$context.routeKey", "$context.status", "$context.responseLatency"} <= set(fields.values())
    assert not {"$context.path", "$context.identity.userAgent"} & set(fields.values())
