# A pool of GPU machines behind an application load balancer, and the daemon that sizes it.
#
# Makes: (a VPC,) load balancer, target group, launch template, security groups, notices queue, role, the daemon's host
# with its ledger's volume, and the daemon's config. Does not make: GPU machines (the daemon does), images, certificates.

locals {
  name        = "${var.pool}-autoscaler"
  tags        = merge({ "autoscaler:managed-by" = "terraform", "autoscaler:pool-of" = var.pool }, var.tags)
  listen_port = var.certificate_arn == null ? 80 : 443

  health_paths = {
    vllm   = "/health", sglang = "/health", tgi = "/health", llama_cpp = "/health", nim = "/v1/health/ready",
    triton = "/v2/health/ready", torchserve = "/ping",
  }
  health_path = local.health_paths[var.preset]

  zones_of_machines = local.own_vpc ? var.zones : [for subnet in data.aws_subnet.machines : subnet.availability_zone]

  offer = {
    compute         = "aws_ec2"
    region          = data.aws_region.current.name
    launch_template = aws_launch_template.machine.id
    # A number, not $Default: a version that changes is used once this config is applied, and the drift is shown.
    version       = tostring(aws_launch_template.machine.latest_version)
    instance_type = var.instance_type
    subnets       = sort(local.private)
    zones         = sort(distinct(local.zones_of_machines))
    notices_queue = aws_sqs_queue.notices.url
  }

  spot_offers = var.spot ? [merge(local.offer, { name = "spot", market = "spot", usd_per_hour = var.spot_usd_per_hour })] : []
  offers      = concat(local.spot_offers, [merge(local.offer, { name = "on-demand", usd_per_hour = var.usd_per_hour })])

  ready_when = merge(
    { preset = var.preset, port = var.model_port, generate = true, passes = 2, give_up_after = "20m" },
    var.model == "" ? {} : { model = var.model },
  )

  pool_config = merge(
    {
      name       = var.pool
      mode       = var.mode
      capacity   = var.capacity
      offers     = local.offers
      ready_when = local.ready_when
      balancers = [{
        kind         = "aws_elb"
        target_group = aws_lb_target_group.this.arn
        strategy     = var.strategy
      }]
      telemetry = { kind = "scrape", preset = var.preset }
      policies  = var.policies
      drain     = { deadline = "${var.longest_request_s}s" }
    },
    var.budget_usd_per_hour == null ? {} : { budget = { usd_per_hour = var.budget_usd_per_hour } },
    var.extra,
  )

  config = yamlencode({
    installation = var.installation
    state_dir    = "/var/lib/autoscaler"
    ledger       = { url = "sqlite:////var/lib/autoscaler/autoscaler.db" }
    admin        = { listen = "127.0.0.1:9095" }
    pools        = [local.pool_config]
  })
}
