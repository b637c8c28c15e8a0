"""Synthesizes Tally's CloudFormation template. `cdk` runs it; its context is described in stacks/options.py."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "lambdas"))  # the declarations that routes and roles are made from

from aws_cdk import App, Validations
from cdk_nag import AwsSolutionsChecks

from stacks.bundling import BundlingError
from stacks.options import Options, OptionsError
from stacks.tally_stack import TallyStack


def build(context: Mapping[str, Any] | None = None, outdir: str | None = None) -> App:
    """The CDK app with its one stack. Raises OptionsError for a context that Tally cannot be deployed with."""
    app = App(context=context, outdir=outdir, analytics_reporting=False)
    options = Options.from_context(app.node.get_all_context())
    TallyStack(app, "Tally", options)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    return app


def main() -> int:
    """Synthesize; 1 and one line on what the person who deploys can put right."""
    try:
        build().synth()
    except (OptionsError, BundlingError) as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    except RuntimeError as error:  # what every error of CDK becomes on its way to Python
        if "ValidationFailed" not in str(error):
            raise
        print("tally: the stack breaks the rules above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
