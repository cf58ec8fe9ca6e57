# Who may speak to whom: clients to the load balancer, it and the daemon to the model port, nobody else to a machine.

resource "aws_security_group" "balancer" {
  name        = "${local.name}-balancer"
  description = "Load balancer of LLM pool ${var.pool}"
  vpc_id      = local.vpc_id
  tags        = merge(local.tags, { Name = "${local.name}-balancer" })
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each          = toset(var.client_cidrs)
  security_group_id = aws_security_group.balancer.id
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = local.listen_port
  to_port           = local.listen_port
  description       = "clients"
}

# Requests and health checks.
resource "aws_vpc_security_group_egress_rule" "to_machines" {
  security_group_id            = aws_security_group.balancer.id
  referenced_security_group_id = aws_security_group.machines.id
  ip_protocol                  = "tcp"
  from_port                    = var.model_port
  to_port                      = var.model_port
}

resource "aws_security_group" "machines" {
  name        = "${local.name}-machines"
  description = "GPU machines of LLM pool ${var.pool}"
  vpc_id      = local.vpc_id
  tags        = merge(local.tags, { Name = "${local.name}-machines" })
}

# Requests and health checks.
resource "aws_vpc_security_group_ingress_rule" "from_balancer" {
  security_group_id            = aws_security_group.machines.id
  referenced_security_group_id = aws_security_group.balancer.id
  ip_protocol                  = "tcp"
  from_port                    = var.model_port
  to_port                      = var.model_port
}

# Model-loaded check and metrics.
resource "aws_vpc_security_group_ingress_rule" "from_daemon" {
  security_group_id            = aws_security_group.machines.id
  referenced_security_group_id = aws_security_group.daemon.id
  ip_protocol                  = "tcp"
  from_port                    = var.model_port
  to_port                      = var.model_port
}

resource "aws_vpc_security_group_egress_rule" "machines_out" {
  security_group_id = aws_security_group.machines.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
  description       = "packages and models"
}

# The daemon listens to nobody from outside: its admin API is on loopback, and Session Manager needs no open port.
resource "aws_security_group" "daemon" {
  name        = "${local.name}-daemon"
  description = "Autoscaler of LLM pool ${var.pool}"
  vpc_id      = local.vpc_id
  tags        = merge(local.tags, { Name = "${local.name}-daemon" })
}

resource "aws_vpc_security_group_egress_rule" "daemon_out" {
  security_group_id = aws_security_group.daemon.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
  description       = "AWS APIs, probes and metrics of replicas, packages"
}
