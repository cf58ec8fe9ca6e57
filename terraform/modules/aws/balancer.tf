# An application load balancer that suits streams: no idle cut, drains as long as the longest request.

resource "aws_lb" "this" {
  name               = local.name
  internal           = var.internal
  load_balancer_type = "application"
  security_groups    = [aws_security_group.balancer.id]
  subnets            = local.public
  # A stream that says nothing for this long is cut: a prompt may wait its whole life for its first token.
  idle_timeout               = min(4000, var.longest_request_s)
  drop_invalid_header_fields = true
  tags                       = local.tags
}

resource "aws_lb_target_group" "this" {
  name                          = local.name
  port                          = var.model_port
  protocol                      = "HTTP"
  vpc_id                        = local.vpc_id
  target_type                   = "instance"
  deregistration_delay          = var.longest_request_s
  load_balancing_algorithm_type = var.strategy == "least_connections" ? "least_outstanding_requests" : "round_robin"
  tags                          = local.tags

  # Whether the model is loaded is the daemon's question, asked before it registers. This check only takes out a
  # machine that stopped answering, and is slow to do so: a saturated server answers late, and is not ill.
  health_check {
    path                = local.health_path
    port                = "traffic-port"
    protocol            = "HTTP"
    matcher             = "200"
    interval            = 10
    timeout             = 9
    healthy_threshold   = 2
    unhealthy_threshold = 4
  }
}

resource "aws_lb_listener" "this" {
  load_balancer_arn = aws_lb.this.arn
  port              = local.listen_port
  protocol          = var.certificate_arn == null ? "HTTP" : "HTTPS"
  certificate_arn   = var.certificate_arn
  ssl_policy        = var.certificate_arn == null ? null : "ELBSecurityPolicy-TLS13-1-2-2021-06"
  tags              = local.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this.arn
  }
}
