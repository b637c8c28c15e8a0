"""Synthesizes stacks in this process, with cdk-nag and CDK's own rules, once for each context in a test session."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "20")  # Tally supports Node 20, too
os.environ["JSII_DEPRECATED"] = "fail"  # deprecated parts of CDK fail, as Python's warnings do

import pytest

import app
from tally.contract.declarations import Declarations
from tests.infra.template import Template

DECLARED = Declarations.load(app.LAMBDAS / "counters.py")
Synthesize = Callable[..., Template]
ROOT = Path(__file__).parents[2]
UNBUNDLED = {"aws:cdk:bundling-stacks": []}  # synthesizes without the bundle of the functions, which takes seconds
CERTIFICATE = "arn:aws:acm:eu-west-1:123456789012:certificate/11111111-2222-4333-8444-555555555555"
EDGE_CERTIFICATE = CERTIFICATE.replace("eu-west-1", "us-east-1")
VAULT = "arn:aws:backup:eu-central-1:210987654321:backup-vault:tally"
# Independent options share a template, because each synthesis takes seconds.
LAVISH = {
    "domainName": "api.example.com", "certificateArn": CERTIFICATE,
    "corsOrigins": "https://example.com,http://localhost:3000", "likersVisible": "signedIn", "snapStart": "true",
    "tracing": "all", "logSampling": "0",
    "mfa": "required", "usersPlan": "essentials", "oneUserPerMailbox": "false", "canary": "true",
}  # fmt: skip
BEHIND_CDN = {
    "stage": "prod", "domainName": "api.example.com", "certificateArn": CERTIFICATE, "cdn": "true",
    "originName": "o-7f3a9c21.example.com", "cdnCertificateArn": EDGE_CERTIFICATE,
    "cdnClientCertificateArn": EDGE_CERTIFICATE, "originTrustStore": "s3://bucket/authorities.pem",
    "clientRate": "3000", "edgeLogs": "30",
    "issuer": "https://login.example.com/", "audience": "tally, other", "likersVisible": "nobody",
    "deadLetterDays": "30", "seriesDays": "400", "snapStart": "false", "tracing": "off", "logSampling": "0.05",
    "warmWrites": "20000", "reservedConcurrency": "40", "strangersConcurrency": "203", "maxWrites": "30000",
    "alarmEmail": "ops@example.com", "receiptTtlHours": "48",
    "pageHosts": "Example.com, blog.example.org,", "canary": "false", "backupTo": VAULT,
    "eventBus": "arn:aws:events:eu-west-1:123456789012:event-bus/numbers",
    "docsUrl": "https://git.example.com/tally/docs/",
}  # fmt: skip


def context_of_cdk_json() -> dict[str, Any]:
    """Returns the context that the `cdk` command gives the app."""
    context: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text())["context"]
    return context


@pytest.fixture(scope="session")
def synthesize(tmp_path_factory: pytest.TempPathFactory) -> Synthesize:
    """Returns a function that returns the template of a context: `synthesize(stage="prod", …)`.

    Each context is synthesized once for all workers. If a rule is broken, the function raises CDK's error.
    """
    templates: dict[str, Template] = {}
    worker_folder = tmp_path_factory.getbasetemp()
    shared = worker_folder.parent if "PYTEST_XDIST_WORKER" in os.environ else worker_folder

    def template(**options: str) -> Template:
        if options.get("stage") == "dev":  # the default
            del options["stage"]
        name = json.dumps(options, sort_keys=True)
        if name not in templates:
            out = shared / f"cdk.out-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
            with out.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not out.exists():
                    unfinished = tmp_path_factory.mktemp("cdk.out")
                    app.build({**context_of_cdk_json(), **UNBUNDLED, **options}, str(unfinished)).synth()
                    unfinished.rename(out)
            templates[name] = Template(out)
        return templates[name]

    return template


@pytest.fixture(scope="session")
def dev(synthesize: Synthesize) -> Template:
    return synthesize()


@pytest.fixture(scope="session")
def prod(synthesize: Synthesize) -> Template:
    return synthesize(stage="prod")


@pytest.fixture(scope="session")
def lavish(synthesize: Synthesize) -> Template:
    """A dev stack with many options: a domain for the API, listed origins, and likers that signed-in users see."""
    return synthesize(**LAVISH)


@pytest.fixture(scope="session")
def behind_cdn(synthesize: Synthesize) -> Template:
    """A prod stack behind CloudFront with mutual TLS and a team's issuer, without likers, snapshots and traces."""
    return synthesize(**BEHIND_CDN)


@pytest.fixture(scope="session")
def edge(behind_cdn: Template) -> Template:
    """The stack in us-east-1 in front of the stack `behind_cdn`."""
    return Template(behind_cdn.folder, id="TallyEdge")
