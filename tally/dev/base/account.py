"""The AWS account and region that the stack has on this machine."""

REGION = "eu-west-1"
ACCOUNT = "000000000000"
