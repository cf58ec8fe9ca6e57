output "config" {
  description = "The daemon's config: `terraform output -raw config > autoscaler.yaml`, then `autoscaler check`."
  value       = local.config
}

output "url" {
  description = "Where clients send requests."
  value       = "${var.certificate_arn == null ? "http" : "https"}://${aws_lb.this.dns_name}"
}

output "target_group_arn" {
  description = "Target group that the daemon fills."
  value       = aws_lb_target_group.this.arn
}

output "launch_template_id" {
  description = "Launch template of the GPU machines."
  value       = aws_launch_template.machine.id
}

output "notices_queue_url" {
  description = "Queue with what EC2 announces."
  value       = aws_sqs_queue.notices.url
}

output "daemon_role_arn" {
  description = "Role of the daemon, for running it elsewhere."
  value       = aws_iam_role.daemon.arn
}

output "daemon_policies" {
  description = "The role's policies as JSON, to read before you trust them."
  value = {
    look = data.aws_iam_policy_document.look.json
    act  = data.aws_iam_policy_document.act.json
  }
}

output "daemon_instance_id" {
  description = "The daemon's host: `aws ssm start-session --target ID`."
  value       = one(aws_instance.daemon[*].id)
}

output "vpc_id" {
  description = "The VPC, given or made."
  value       = local.vpc_id
}
