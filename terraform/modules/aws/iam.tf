# What the daemon may do: only the actions that its adapters call, and changes only to what carries our tags.
# In mode advise it may look, and change nothing.

data "aws_caller_identity" "current" {}

locals {
  arn = "arn:${data.aws_partition.current.partition}"
  ec2 = "${local.arn}:ec2:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}"
}

data "aws_iam_policy_document" "assume" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "daemon" {
  name               = "${local.name}-daemon"
  description        = "Autoscaler of LLM pool ${var.pool}"
  assume_role_policy = data.aws_iam_policy_document.assume.json
  tags               = local.tags
}

resource "aws_iam_instance_profile" "daemon" {
  name = "${local.name}-daemon"
  role = aws_iam_role.daemon.name
  tags = local.tags
}

# Looking: AWS has no conditions for these but the region.
data "aws_iam_policy_document" "look" {
  statement {
    sid = "Look"
    actions = [
      "ec2:DescribeInstances",
      "ec2:DescribeInstanceAttribute",
      "ec2:DescribeLaunchTemplateVersions",
      "ec2:DescribeSecurityGroups",
      "ec2:DescribeSubnets",
      "elasticloadbalancing:DescribeListeners",
      "elasticloadbalancing:DescribeLoadBalancerAttributes",
      "elasticloadbalancing:DescribeLoadBalancers",
      "elasticloadbalancing:DescribeTargetGroupAttributes",
      "elasticloadbalancing:DescribeTargetGroups",
      "elasticloadbalancing:DescribeTargetHealth",
      "cloudwatch:GetMetricData",
    ]
    resources = ["*"]
    condition {
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = [data.aws_region.current.name]
    }
  }

  statement {
    sid       = "ReadNotices"
    actions   = ["sqs:ReceiveMessage", "sqs:DeleteMessage"]
    resources = [aws_sqs_queue.notices.arn]
  }
}

resource "aws_iam_role_policy" "look" {
  name   = "look"
  role   = aws_iam_role.daemon.id
  policy = data.aws_iam_policy_document.look.json
}

# The one role that a machine may be given: with another, whoever has the daemon's role would have that one too.
data "aws_iam_instance_profile" "machine" {
  count = var.instance_profile_arn == null ? 0 : 1
  name  = reverse(split("/", var.instance_profile_arn))[0]
}

data "aws_iam_policy_document" "act" {
  # A launch touches many kinds of resource. What is made must carry our tags from its first moment …
  statement {
    sid       = "LaunchTagged"
    actions   = ["ec2:RunInstances"]
    resources = ["${local.ec2}:instance/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/autoscaler:installation"
      values   = [var.installation]
    }
    condition {
      test     = "ArnEquals"
      variable = "ec2:LaunchTemplate"
      values   = [aws_launch_template.machine.arn]
    }
  }

  # … what is used is this template, these subnets and this group, and the image, key and volumes that it names.
  statement {
    sid     = "LaunchWith"
    actions = ["ec2:RunInstances"]
    resources = concat(
      [aws_launch_template.machine.arn, aws_security_group.machines.arn],
      [for id in local.private : "${local.ec2}:subnet/${id}"],
      [
        "${local.ec2}:network-interface/*",
        "${local.ec2}:volume/*",
        "${local.ec2}:key-pair/*",
        "${local.ec2}:capacity-reservation/*",
        "${local.arn}:ec2:${data.aws_region.current.name}::image/*",
        "${local.arn}:ec2:${data.aws_region.current.name}::snapshot/*",
      ],
    )
  }

  statement {
    sid       = "TagAtLaunch"
    actions   = ["ec2:CreateTags"]
    resources = ["${local.ec2}:instance/*", "${local.ec2}:volume/*"]
    condition {
      test     = "StringEquals"
      variable = "ec2:CreateAction"
      values   = ["RunInstances"]
    }
  }

  statement {
    sid       = "EndStopStartOurs"
    actions   = ["ec2:TerminateInstances", "ec2:StopInstances", "ec2:StartInstances"]
    resources = ["${local.ec2}:instance/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/autoscaler:installation"
      values   = [var.installation]
    }
  }

  statement {
    sid = "Register"
    actions = [
      "elasticloadbalancing:RegisterTargets",
      "elasticloadbalancing:DeregisterTargets",
      "elasticloadbalancing:ModifyTargetGroupAttributes",
    ]
    resources = [aws_lb_target_group.this.arn]
  }

  dynamic "statement" {
    for_each = var.instance_profile_arn == null ? [] : [1]
    content {
      sid       = "PassMachineRole"
      actions   = ["iam:PassRole"]
      resources = [data.aws_iam_instance_profile.machine[0].role_arn]
      condition {
        test     = "StringEquals"
        variable = "iam:PassedToService"
        values   = ["ec2.amazonaws.com"]
      }
    }
  }
}

resource "aws_iam_role_policy" "act" {
  count  = var.mode == "act" ? 1 : 0
  name   = "act"
  role   = aws_iam_role.daemon.id
  policy = data.aws_iam_policy_document.act.json
}

# A shell on the host without an open port or a key.
resource "aws_iam_role_policy_attachment" "session_manager" {
  count      = var.daemon_enabled ? 1 : 0
  role       = aws_iam_role.daemon.name
  policy_arn = "${local.arn}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}
