# Terraform or OpenTofu: a function that counts plays with the Tally that is deployed beside it.

terraform {
  required_providers {
    aws     = { source = "hashicorp/aws", version = "~> 6.0" }
    archive = { source = "hashicorp/archive", version = "~> 2.0" }
  }
}

variable "tally_stack" {
  description = "The name of Tally's CloudFormation stack, in the same account and region"
  default     = "Tally-prod"
}

data "aws_cloudformation_stack" "tally" {
  name = var.tally_stack
}

data "archive_file" "play" {
  type        = "zip"
  source_file = "${path.module}/play.py"
  output_path = "${path.module}/play.zip"
}

data "archive_file" "client" {
  type        = "zip"
  source_dir  = "${path.module}/layer"
  output_path = "${path.module}/client.zip"
}

resource "aws_lambda_layer_version" "client" {
  layer_name       = "tally-client"
  filename         = data.archive_file.client.output_path
  source_code_hash = data.archive_file.client.output_base64sha256
}

resource "aws_iam_role" "play" {
  name_prefix = "play-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "lambda.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy_attachment" "logs" {
  role       = aws_iam_role.play.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"
}

resource "aws_iam_role_policy_attachment" "tally" {
  role       = aws_iam_role.play.name
  policy_arn = data.aws_cloudformation_stack.tally.outputs["InvokePolicyArn"]
}

resource "aws_lambda_function" "play" {
  function_name    = "play"
  role             = aws_iam_role.play.arn
  runtime          = "python3.14"
  handler          = "play.handler"
  timeout          = 20
  filename         = data.archive_file.play.output_path
  source_code_hash = data.archive_file.play.output_base64sha256
  layers           = [aws_lambda_layer_version.client.arn]

  environment {
    variables = {
      TALLY_FUNCTIONS = jsonencode({
        increments = data.aws_cloudformation_stack.tally.outputs["IncrementsFunctionArn"]
      })
    }
  }
}

output "tally_url" {
  value = data.aws_cloudformation_stack.tally.outputs["ApiUrl"]
}
