"""The HTTP API: routes, who may call them and how often, and the access log."""

from __future__ import annotations

import json
import re

import pytest
from tally.operation import Access, Operation, by_route

import operations
from counters import COUNTERS
from tests.infra.conftest import FEW_SEE_LIKERS, Synthesize
from tests.infra.template import Json, Template

SCHEDULED = [schedule.function for schedule in operations.SCHEDULES]
BADGE = "GET /counters/{counter}/{id}/badge.svg"
LIKERS = "GET /posts/{id}/likes"
# Options that do not touch each other share a synth, which takes seconds.
ROUTES = by_route(operations.OPERATIONS, COUNTERS).values()
BY_NAME = pytest.mark.parametrize("operation", ROUTES, ids=lambda operation: operation.id)


def stage(template: Template) -> Json:
    return template.only("AWS::ApiGatewayV2::Stage")


def test_the_routes_are_the_operations(dev: Template) -> None:
    assert sorted(dev.routes()) == sorted(operation.route for operation in ROUTES)


def test_no_route_hides_a_tally_of_another() -> None:
    """API Gateway takes the most specific route, so `/counters/{counter}/top` would hide the tally `top`."""
    counted = [route for route in ROUTES if route.path.endswith("/{id}")]
    for route in counted:
        below = route.path.removesuffix("{id}")
        assert not [one.route for one in ROUTES if re.fullmatch(re.escape(below) + "[^/{]+", one.path)], route.route


@BY_NAME
def test_a_route_reaches_its_functions_alias(dev: Template, operation: Operation) -> None:
    alias = {"Ref": dev.alias_of(dev.functions()[operation.function])}
    prefix, integration = dev.routes()[operation.route]["Target"]["Fn::Join"][1]
    assert prefix == "integrations/"
    properties = dev.resources[integration["Ref"]]["Properties"]
    assert properties["IntegrationType"] == "AWS_PROXY"
    assert properties["PayloadFormatVersion"] == "2.0"
    assert properties["IntegrationUri"] == alias
    permissions = [
        found["Properties"]["SourceArn"]["Fn::Join"][1][-1]
        for found in dev.of_type("AWS::Lambda::Permission").values()
        if found["Properties"]["FunctionName"] == alias
    ]
    assert permissions == ["/*/*/*"], "any route of this API, and of no other"


def test_only_the_api_or_its_schedule_may_invoke_a_function_and_only_the_alias(dev: Template) -> None:
    principals = {"apigateway.amazonaws.com": operations.functions().keys(), "events.amazonaws.com": SCHEDULED}
    functions = dev.functions()
    for permission in dev.of_type("AWS::Lambda::Permission").values():
        theirs = principals[permission["Properties"]["Principal"]]
        assert permission["Properties"]["FunctionName"] in [{"Ref": dev.alias_of(functions[name])} for name in theirs]


@BY_NAME
def test_who_may_call(dev: Template, operation: Operation) -> None:
    route = dev.routes()[operation.route]
    if operation.access is Access.ANYONE:
        assert route["AuthorizationType"] == "NONE"
        assert "AuthorizerId" not in route
    else:
        [authorizer] = dev.of_type("AWS::ApiGatewayV2::Authorizer")
        assert route["AuthorizationType"] == "JWT"
        assert route["AuthorizerId"] == {"Ref": authorizer}


def test_signed_in_callers_alone_see_likers_if_the_deployment_says_so(own_domain: Template, dev: Template) -> None:
    template = own_domain
    assert dev.routes()[LIKERS]["AuthorizationType"] == "NONE"
    assert template.routes()[LIKERS]["AuthorizationType"] == "JWT"
    others = {key: route["AuthorizationType"] for key, route in dev.routes().items() if key != LIKERS}
    assert {key: template.routes()[key]["AuthorizationType"] for key in others} == others
    assert LIKERS in stage(template)["RouteSettings"]
    assert_told(template, "signedIn")


def test_nobody_sees_likers_if_the_deployment_says_so(synthesize: Synthesize, dev: Template) -> None:
    template = synthesize(**FEW_SEE_LIKERS)
    assert template.routes().keys() == dev.routes().keys() - {LIKERS}
    assert stage(template)["RouteSettings"].keys() == template.routes().keys(), "an unknown route fails the deploy"
    assert_told(template, "nobody")
    [lifecycle, _] = template.only("AWS::S3::Bucket")["LifecycleConfiguration"]["Rules"]
    assert lifecycle["ExpirationInDays"] == 30


def assert_told(template: Template, likers: str) -> None:
    """The functions know it, for the document that they serve."""
    health = template.resources[template.functions()["health"]]["Properties"]["Environment"]["Variables"]
    assert health["TALLY_LIKERS_VISIBLE"] == likers


def test_writes_in_the_name_of_a_user_need_a_token(dev: Template) -> None:
    """A second check beside the comparison with the declarations, which could be wrong themselves."""
    signed_in = {key for key, route in dev.routes().items() if route["AuthorizationType"] == "JWT"}
    counters = {key for key in dev.routes() if "/{counter}" in key} - {BADGE}
    posts = {
        "PUT /posts/{id}",
        "DELETE /posts/{id}",
        "PUT /posts/{id}/like",
        "DELETE /posts/{id}/like",
        "GET /posts/{id}/like",
        "GET /my/likes",
    }
    assert signed_in == {
        *counters,
        *posts,
        "POST /changes",
        "GET /receipts/own",
        "GET /receipts/own/many",
        "GET /drift",
        "GET /status",
        "GET /details",
        "GET /tallies/any",
    }
    assert len(counters) == 13


def test_counters_and_drift_need_a_scope_and_nothing_else_does(dev: Template) -> None:
    scopes = {
        key: route["AuthorizationScopes"] for key, route in dev.routes().items() if "AuthorizationScopes" in route
    }
    counters = {key for key in dev.routes() if "/{counter}" in key} - {BADGE}
    assert scopes == {
        key: ["tally/read"] if key.startswith("GET ") else ["tally/write"]
        for key in {*counters, "POST /changes", "GET /drift", "GET /status", "GET /details", "GET /tallies/any"}
    }
    assert scopes["GET /drift"] == ["tally/read"]


def test_tokens_are_of_the_stacks_own_pool(dev: Template) -> None:
    clients = dev.of_type("AWS::Cognito::UserPoolClient")
    [machines] = [id_ for id_, found in clients.items() if found["Properties"].get("GenerateSecret")]
    [console] = [id_ for id_, found in clients.items() if "CallbackURLs" in found["Properties"]]
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
    # Without a list Cognito allows three ways to sign in. This one needs a token that this client never gets.
    assert clients[machines]["Properties"]["ExplicitAuthFlows"] == ["ALLOW_REFRESH_TOKEN_AUTH"]
    server = dev.only("AWS::Cognito::UserPoolResourceServer")
    assert server["Identifier"] == "tally"
    assert [scope["ScopeName"] for scope in server["Scopes"]] == ["read", "write"]
    assert dev.only("AWS::Cognito::UserPool")["AdminCreateUserConfig"] == {"AllowAdminCreateUserOnly": True}


def console_of(template: Template) -> tuple[str, Json]:
    """The pool's client for the console: its logical id and properties."""
    [found] = [
        (id_, client["Properties"])
        for id_, client in template.of_type("AWS::Cognito::UserPoolClient").items()
        if "CallbackURLs" in client["Properties"]
    ]
    return found


def test_people_sign_in_to_the_console_on_the_pools_page_with_a_code_and_no_secret(dev: Template) -> None:
    _, console = console_of(dev)
    assert console["AllowedOAuthFlows"] == ["code"]
    assert "GenerateSecret" not in console
    openid, read = console["AllowedOAuthScopes"]
    assert (openid, str(read).endswith("'/read']]}")) == ("openid", True)
    assert console["CallbackURLs"] == console["LogoutURLs"] == [dev.outputs["ConsoleUrl"]["Value"]]
    assert console["ExplicitAuthFlows"] == ["ALLOW_REFRESH_TOKEN_AUTH"]
    group = dev.only("AWS::Cognito::UserPoolGroup")
    assert (group["GroupName"], group["UserPoolId"]) == ("operators", {"Ref": "UserPool"})
    assert "RoleArn" not in group


def test_what_a_scope_guards_knows_whose_tokens_are_those_of_people(dev: Template, synthesize: Synthesize) -> None:
    """Else a token of the console, which any user of the pool gets, would read every number."""
    client, _ = console_of(dev)
    other_issuer = synthesize(**FEW_SEE_LIKERS)
    guarded = {operation.function for operation in operations.OPERATIONS if operation.scope}
    for module, name in dev.functions().items():
        variables = dev.resources[name]["Properties"]["Environment"]["Variables"]
        assert variables.get("TALLY_CONSOLE_CLIENT") == ({"Ref": client} if module in guarded else None), module
        others = other_issuer.resources[other_issuer.functions()[module]]["Properties"]["Environment"]["Variables"]
        assert "TALLY_CONSOLE_CLIENT" not in others


def console_config(template: Template) -> Json:
    """What `/console/config.json` says, with each reference as the name of what it refers to."""
    made = template.resources[template.functions()["beacon"]]["Properties"]["Environment"]["Variables"]["TALLY_CONSOLE"]
    parts = made["Fn::Join"][1]
    found: Json = json.loads("".join(part if isinstance(part, str) else str(*part.values()) for part in parts))
    return found


def test_the_console_knows_its_stack_and_where_to_sign_in(dev: Template, synthesize: Synthesize) -> None:
    client, _ = console_of(dev)
    config = console_config(dev)
    sign_in = config.pop("sign_in")
    assert config == {"stage": "dev", "stack": "Tally-dev", "region": "AWS::Region", "try_it": False}
    assert (sign_in["kind"], sign_in["client_id"]) == ("pkce", client)
    assert sign_in["domain"].startswith("https://")
    assert sign_in["domain"].endswith(".amazoncognito.com")
    assert sign_in["redirect"].endswith("/console")
    assert console_config(synthesize(**FEW_SEE_LIKERS))["sign_in"] == {"kind": "token"}


def test_tokens_of_another_issuer(synthesize: Synthesize) -> None:
    template = synthesize(**FEW_SEE_LIKERS)
    assert template.only("AWS::ApiGatewayV2::Authorizer")["JwtConfiguration"] == {
        "Issuer": "https://login.example.com/",
        "Audience": ["tally", "other"],
    }
    assert not template.of_type("AWS::Cognito::UserPool")
    assert "UserPoolId" not in template.outputs


def test_every_route_has_its_throttle_under_cloudformations_names(dev: Template) -> None:
    assert stage(dev)["RouteSettings"] == {
        operation.route: {
            "ThrottlingRateLimit": operation.throttle.rate_per_s,
            "ThrottlingBurstLimit": operation.throttle.burst,
        }
        for operation in ROUTES
    }


def test_a_route_without_a_throttle_would_get_the_lowest(dev: Template) -> None:
    settings = stage(dev)["DefaultRouteSettings"]
    assert settings["ThrottlingRateLimit"] == min(operation.throttle.rate_per_s for operation in operations.OPERATIONS)
    assert settings["ThrottlingBurstLimit"] == min(operation.throttle.burst for operation in operations.OPERATIONS)


def test_the_stage_waits_for_the_routes_that_it_throttles(dev: Template) -> None:
    [name] = dev.of_type("AWS::ApiGatewayV2::Stage")
    assert set(dev.of_type("AWS::ApiGatewayV2::Route")) <= set(dev.resources[name]["DependsOn"])


def test_access_log_is_json_without_text_from_callers(dev: Template) -> None:
    settings = stage(dev)["AccessLogSettings"]
    group, attribute = settings["DestinationArn"]["Fn::GetAtt"]
    assert dev.resources[group]["Type"] == "AWS::Logs::LogGroup"
    assert attribute == "Arn"
    quoted = '"error": $context.error.messageString'  # with the quotes that AWS puts around it
    assert settings["Format"].count(quoted) == settings["Format"].count("$context.error") == 1
    fields = json.loads(settings["Format"].replace(quoted, '"error": "Not Found"'))
    assert fields["requestId"] == "$context.requestId"
    assert {"$context.routeKey", "$context.status", "$context.responseLatency"} <= set(fields.values())
    assert not {"$context.path", "$context.identity.userAgent"} & set(fields.values())


def test_cors(dev: Template) -> None:
    assert dev.only("AWS::ApiGatewayV2::Api")["CorsConfiguration"] == {
        "AllowOrigins": ["*"],
        "AllowMethods": ["DELETE", "GET", "POST", "PUT"],
        "AllowHeaders": ["authorization", "content-type", "idempotency-key", "if-match"],
        "ExposeHeaders": ["Date", "ETag", "Idempotency-Replayed", "Retry-After"],
        "MaxAge": 86_400,
    }


def test_cors_of_listed_origins(own_domain: Template) -> None:
    origins = own_domain.only("AWS::ApiGatewayV2::Api")["CorsConfiguration"]["AllowOrigins"]
    assert origins == ["https://example.com", "http://localhost:3000"]


def test_the_outputs_name_the_url_and_say_that_no_page_counts_yet(dev: Template) -> None:
    [api] = dev.of_type("AWS::ApiGatewayV2::Api")
    assert dev.outputs["ApiUrl"]["Value"] == {"Fn::GetAtt": [api, "ApiEndpoint"]}
    assert dev.outputs["PageHosts"]["Value"].startswith("none")
    assert json.dumps(dev.outputs, ensure_ascii=False).isascii(), "CloudFormation shows other characters as ?"
