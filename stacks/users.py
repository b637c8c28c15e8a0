"""The Cognito user pool, for deployments without a token issuer of their own."""

from __future__ import annotations

from aws_cdk import Acknowledgment, RemovalPolicy, Stack, Validations
from aws_cdk import aws_cognito as cognito
from constructs import Construct

from .names import Names


class Users(Construct):
    """A user pool and its clients. Only operators add users; sign-up needs a deployment with an issuer of its own."""

    pool: cognito.UserPool
    client: cognito.UserPoolClient
    machines: cognito.UserPoolClient
    token_url: str

    def __init__(self, scope: Construct, id: str, *, names: Names, keeps_data: bool) -> None:
        super().__init__(scope, id)
        self.pool = cognito.UserPool(
            self,
            "Pool",
            self_sign_up_enabled=False,
            sign_in_aliases=cognito.SignInAliases(email=True),
            password_policy=cognito.PasswordPolicy(
                min_length=12, require_lowercase=True, require_uppercase=True, require_digits=True, require_symbols=True
            ),
            mfa=cognito.Mfa.OPTIONAL,
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
                reason="A token lets its user like posts and edit their own, nothing more: each user may turn MFA on",
            ),
            Acknowledgment(
                id="AwsSolutions-COG8",
                reason="Plus bills every user a month for threat protection; who needs that gives its own issuer",
            ),
        )
        self.client = self.pool.add_client(
            "Client",
            # SRP is for programs. The password flow needs the account's credentials: the smoke test uses it.
            auth_flows=cognito.AuthFlow(user_srp=True, admin_user_password=True),
            prevent_user_existence_errors=True,
            disable_o_auth=True,
        )
        self._add_machines(names)

    def _add_machines(self, names: Names) -> None:
        """The client of programs that count. Its id and secret buy tokens with Tally's scopes."""
        scopes = [
            cognito.ResourceServerScope(scope_name="read", scope_description="Read counters"),
            cognito.ResourceServerScope(scope_name="write", scope_description="Change counters"),
        ]
        server = self.pool.add_resource_server("Server", identifier="tally", scopes=scopes)
        self.machines = self.pool.add_client(
            "Machines",
            generate_secret=True,
            # Nobody signs in with it. Without a flow listed Cognito would allow its three defaults; a token of client
            # credentials has no refresh token.
            auth_flows=cognito.AuthFlow(user_srp=False),
            o_auth=cognito.OAuthSettings(
                flows=cognito.OAuthFlows(client_credentials=True),
                scopes=[cognito.OAuthScope.resource_server(server, scope) for scope in scopes],
            ),
        )
        prefix = names.login_domain(Stack.of(self).account)
        domain = self.pool.add_domain("Domain", cognito_domain=cognito.CognitoDomainOptions(domain_prefix=prefix))
        self.token_url = f"{domain.base_url()}/oauth2/token"
