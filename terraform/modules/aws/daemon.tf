# The daemon's own host: one small machine with its ledger on a volume of its own.
#
# Why this and not a container service or a group of one: the ledger is a file with one writer. A volume is attached to
# one machine at a time, so a second daemon cannot even start while the first lives; EC2 recovers the machine on other
# hardware with the same volume, and `terraform apply` makes a new host that finds the old ledger. Ten minutes without a
# daemon cost nothing but time: the pool stays as it is, since nothing is ended by the daemon's absence.

locals {
  unit = file("${path.module}/files/autoscaler.service") # the same as deploy/systemd has; a test compares them
  host = var.daemon_enabled ? local.private[0] : ""
  host_zone = var.daemon_enabled ? (
    local.own_vpc ? values(aws_subnet.private)[0].availability_zone : data.aws_subnet.machines[local.host].availability_zone
  ) : ""
}

resource "aws_ebs_volume" "ledger" {
  count             = var.daemon_enabled ? 1 : 0
  availability_zone = local.host_zone
  size              = var.ledger_volume_gib
  type              = "gp3"
  encrypted         = true
  # The ledger says what each machine is for. Losing it costs no machine (they are adopted by their tags), but time.
  final_snapshot = true
  tags           = merge(local.tags, { Name = "${local.name}-ledger" })
}

resource "aws_instance" "daemon" {
  count                       = var.daemon_enabled ? 1 : 0
  ami                         = var.daemon_image_id
  instance_type               = var.daemon_instance_type
  subnet_id                   = local.host
  vpc_security_group_ids      = [aws_security_group.daemon.id]
  iam_instance_profile        = aws_iam_instance_profile.daemon.name
  user_data_replace_on_change = true
  tags                        = merge(local.tags, { Name = "${local.name}-daemon" })

  user_data = templatefile("${path.module}/files/daemon.sh.tftpl", {
    config  = local.config
    unit    = local.unit
    package = var.daemon_package
    volume  = replace(aws_ebs_volume.ledger[0].id, "-", "")
  })

  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
  }

  root_block_device {
    encrypted   = true
    volume_type = "gp3"
    volume_size = 16
  }

  lifecycle {
    precondition {
      condition     = var.daemon_image_id != null
      error_message = "daemon_image_id: an AMI is needed for the daemon's host (or set daemon_enabled = false)."
    }
  }
}

resource "aws_volume_attachment" "ledger" {
  count       = var.daemon_enabled ? 1 : 0
  device_name = "/dev/sdf"
  volume_id   = aws_ebs_volume.ledger[0].id
  instance_id = aws_instance.daemon[0].id
}
