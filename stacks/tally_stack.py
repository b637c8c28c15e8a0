"""The stack that this repository deploys: Tally for one stage."""

from __future__ import annotations

from aws_cdk import Stack
from constructs import Construct

from tally.cdk.bundling import Bundle
from tally.cdk.construct import Tally
from tally.cdk.names import HIDDEN_ID, stack_name
from tally.cdk.options import Options
from tally.contract.declarations import Declarations


class TallyStack(Stack):
    """Tally of one stage. The stack has no account or region: the deployer's credentials decide them."""

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
        Tally(self, HIDDEN_ID, counters=declarations, options=options, bundle=bundle)
