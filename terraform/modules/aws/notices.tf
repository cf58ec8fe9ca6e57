# What EC2 announces about machines reaches the daemon through one queue: it drains and replaces ahead of time.

locals {
  announced = {
    spot      = { source = ["aws.ec2"], "detail-type" = ["EC2 Spot Instance Interruption Warning"] }
    rebalance = { source = ["aws.ec2"], "detail-type" = ["EC2 Instance Rebalance Recommendation"] }
    health    = { source = ["aws.health"], "detail-type" = ["AWS Health Event"], detail = { service = ["EC2"] } }
  }
}

resource "aws_sqs_queue" "notices" {
  name = "${local.name}-notices"
  # A notice older than this is about a machine that is long gone.
  message_retention_seconds  = 86400
  visibility_timeout_seconds = 60
  sqs_managed_sse_enabled    = true
  tags                       = local.tags
}

data "aws_iam_policy_document" "notices" {
  statement {
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.notices.arn]
    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }
    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = [for rule in aws_cloudwatch_event_rule.notices : rule.arn]
    }
  }
}

resource "aws_sqs_queue_policy" "notices" {
  queue_url = aws_sqs_queue.notices.id
  policy    = data.aws_iam_policy_document.notices.json
}

resource "aws_cloudwatch_event_rule" "notices" {
  for_each      = local.announced
  name          = "${local.name}-${each.key}"
  description   = "For the autoscaler of LLM pool ${var.pool}"
  event_pattern = jsonencode(each.value)
  tags          = local.tags
}

resource "aws_cloudwatch_event_target" "notices" {
  for_each = local.announced
  rule     = aws_cloudwatch_event_rule.notices[each.key].name
  arn      = aws_sqs_queue.notices.arn
}
