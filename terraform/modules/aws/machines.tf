# How a GPU machine is made. The daemon launches from this template and tags what it launches; Terraform makes none.

resource "aws_launch_template" "machine" {
  name                   = "${local.name}-machine"
  description            = "GPU machine of LLM pool ${var.pool}"
  image_id               = var.image_id
  instance_type          = var.instance_type
  update_default_version = true
  user_data              = var.user_data == "" ? null : base64encode(var.user_data)
  tags                   = local.tags

  # IMDSv2 only, and not from inside containers: a model server that is talked into fetching a URL gets no credentials.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  # No network interface here: EC2 takes no subnet beside one, and the daemon names the subnet of each launch. The
  # subnets are private and give no public address.
  vpc_security_group_ids = [aws_security_group.machines.id]

  block_device_mappings {
    device_name = var.root_device_name
    ebs {
      volume_size           = var.root_volume_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  dynamic "iam_instance_profile" {
    for_each = var.instance_profile_arn == null ? [] : [var.instance_profile_arn]
    content {
      arn = iam_instance_profile.value
    }
  }
}
