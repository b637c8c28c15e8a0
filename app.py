"""Synthesizes Tally's CloudFormation template. `cdk` runs it; tally/cdk/options.py describes its context."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from aws_cdk import App, Validations
    from cdk_nag import AwsSolutionsChecks
except ModuleNotFoundError:
    sys.exit("tally: the CDK is missing: run `make setup-cdk`")

from stacks.edge import Edge
from stacks.tally_stack import TallyStack
from tally.cdk.bundling import Bundle, BundlingError
from tally.cdk.options import Options, OptionsError
from tally.contract.declarations import Declarations
from tally.errors import ConfigurationError
from tally.paths import LAMBDAS


def build(
    context: Mapping[str, Any] | None = None, outdir: str | None = None, counters: Path = LAMBDAS / "counters.py"
) -> App:
    """Returns the CDK app: the stack, and with `cdn=true` a second stack with CloudFront. `counters`: `counters.py`.

    Raises OptionsError for a wrong context, ConfigurationError for wrong declarations, and BundlingError if the
    functions' packages cannot be installed.
    """
    app = App(context=context, outdir=outdir, analytics_reporting=False)
    options = Options.from_context(app.node.get_all_context())
    options.check_region(*map(os.environ.get, ("CDK_DEFAULT_REGION", "CDK_DEFAULT_ACCOUNT")))  # `cdk` sets them
    declarations = Declarations.load(counters)
    cache = Path(__file__).resolve().parent / ".build"
    bundle = Bundle(LAMBDAS, declarations, options.likers_visible, cache_folder=cache)
    tally = TallyStack(app, "Tally", declarations=declarations, options=options, bundle=bundle)
    if options.cdn:
        edge = Edge(app, "TallyEdge", routes=declarations.routes, options=options)
        edge.add_stack_dependency(tally)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    return app


def main() -> int:
    """Synthesizes. For an error that the deployer can correct, prints one line and returns 1."""
    try:
        build().synth()
    except (OptionsError, ConfigurationError, BundlingError) as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    except RuntimeError as error:  # in Python, CDK raises each of its errors as RuntimeError
        kind, _, message = str(error).partition(": ")
        if kind not in ("ValidationFailed", "TooManyResourcesInStack"):
            raise
        message = "the stack breaks the rules above" if kind == "ValidationFailed" else message.partition(": ")[0]
        print(f"tally: {message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
