"""The Cognito user pool, for deployments without a token issuer of their own."""

from __future__ import annotations

from aws_cdk import Acknowledgment, Duration, RemovalPolicy, Stack, Validations
from aws_cdk import aws_cognito as cognito
from constructs import Construct

from tally.api.http import OPERATORS_GROUP

from .names import Names
from .options import Options

CONSOLE_REFRESH = Duration.hours(1)  # the least that Cognito takes; the console does not keep refresh tokens


class Users(Construct):
    """A user pool and its clients. People with AWS credentials add users; for sign-up, give an issuer of your own."""

    pool: cognito.UserPool
    client: cognito.UserPoolClient  # of apps whose users sign in
    machine_client: cognito.UserPoolClient  # of programs without a user
    console_client: cognito.UserPoolClient
    domain_url: str
    """Where people sign in, and programs get tokens."""

    def __init__(self, scope: Construct, id: str, *, names: Names, options: Options, console_url: str) -> None:
        """`console_url`: the address that the pool's page sends people back to."""
        super().__init__(scope, id)
        keeps_data = options.keeps_data
        self.pool = cognito.UserPool(
            self,
            "Pool",
            self_sign_up_enabled=False,
            sign_in_aliases=cognito.SignInAliases(email=True),
            sign_in_case_sensitive=False if options.one_user_per_mailbox else None,
            password_policy=cognito.PasswordPolicy(
                min_length=12, require_lowercase=True, require_uppercase=True, require_digits=True, require_symbols=True
            ),
            feature_plan=cognito.FeaturePlan[options.users_plan],
            mfa=cognito.Mfa[options.mfa],
            mfa_second_factor=cognito.MfaSecondFactor(sms=False, otp=True),  # an authenticator app: costs nothing
            account_recovery=cognito.AccountRecovery.EMAIL_ONLY,
            deletion_protection=keeps_data,
            removal_policy=RemovalPolicy.RETAIN if keeps_data else RemovalPolicy.DESTROY,
        )
        resource = self.pool.node.default_child
        assert isinstance(resource, cognito.CfnUserPool)
        resource.override_logical_id(names.logical_id("UserPool"))  # another id would be a new pool without users
        Validations.of(self.pool).acknowledge(
            Acknowledgment(
                id="AwsSolutions-COG2",
                reason="A token lets its user like posts and edit their own, and an operator read numbers, nothing"
                " more: -c mfa=required asks each user for a second factor",
            ),
            Acknowledgment(
                id="AwsSolutions-COG8",
                reason="The plan Plus bills each user a month for threat protection; a team that needs this gives its"
                " own issuer",
            ),
        )
        self.client = self.pool.add_client(
            "Client",
            # Apps sign users in by SRP. The smoke test uses the password flow, which needs the account's credentials.
            auth_flows=cognito.AuthFlow(user_srp=True, admin_user_password=True),
            prevent_user_existence_errors=True,
            disable_o_auth=True,
        )
        prefix = names.login_domain(Stack.of(self).account)
        domain = self.pool.add_domain("Domain", cognito_domain=cognito.CognitoDomainOptions(domain_prefix=prefix))
        self.domain_url = domain.base_url()
        read = cognito.ResourceServerScope(scope_name="read", scope_description="Read counters")
        write = cognito.ResourceServerScope(scope_name="write", scope_description="Change counters")
        server = self.pool.add_resource_server("Server", identifier="tally", scopes=[read, write])
        self._add_machines(server, [read, write])
        self._add_console(cognito.OAuthScope.resource_server(server, read), console_url)

    def _add_machines(self, server: cognito.UserPoolResourceServer, scopes: list[cognito.ResourceServerScope]) -> None:
        """Adds the client of programs that count. Its id and secret get tokens with Tally's scopes."""
        self.machine_client = self.pool.add_client(
            "Machines",
            generate_secret=True,
            # Nobody signs in with this client. CDK lists only the refresh flow, which client credentials do not use.
            # Without a listed flow, Cognito would allow its three defaults.
            auth_flows=cognito.AuthFlow(user_srp=False),
            o_auth=cognito.OAuthSettings(
                flows=cognito.OAuthFlows(client_credentials=True),
                scopes=[cognito.OAuthScope.resource_server(server, scope) for scope in scopes],
            ),
        )

    def _add_console(self, read: cognito.OAuthScope, url: str) -> None:
        """Adds the client of the console, and the group of its users.

        The client has no secret, because a browser cannot keep one. A code is worth nothing without the verifier of the
        tab that asked for it. Every user gets a token here, but only users of the group may read (api/http.py).
        """
        self.console_client = self.pool.add_client(
            "Console",
            auth_flows=cognito.AuthFlow(user_srp=False),  # people sign in on the pool's page only
            prevent_user_existence_errors=True,
            refresh_token_validity=CONSOLE_REFRESH,
            o_auth=cognito.OAuthSettings(
                flows=cognito.OAuthFlows(authorization_code_grant=True),
                scopes=[cognito.OAuthScope.OPENID, read],
                callback_urls=[url],
                logout_urls=[url],
            ),
        )
        cognito.CfnUserPoolGroup(
            self,
            "Operators",
            user_pool_id=self.pool.user_pool_id,
            group_name=OPERATORS_GROUP,
            description="May look at every number in the console",
        )
