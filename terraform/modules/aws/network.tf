# A VPC of our own where none is given: public subnets for the load balancer, private ones for machines.

locals {
  own_vpc  = var.vpc_id == null
  vpc_id   = local.own_vpc ? aws_vpc.this[0].id : var.vpc_id
  own_zone = local.own_vpc ? { for index, zone in var.zones : zone => index } : {}
  public   = local.own_vpc ? [for subnet in aws_subnet.public : subnet.id] : var.public_subnet_ids
  private  = local.own_vpc ? [for subnet in aws_subnet.private : subnet.id] : var.private_subnet_ids
}

data "aws_region" "current" {}
data "aws_partition" "current" {}

data "aws_subnet" "machines" {
  for_each = local.own_vpc ? {} : { for id in var.private_subnet_ids : id => id }
  id       = each.value
}

resource "aws_vpc" "this" {
  count                = local.own_vpc ? 1 : 0
  cidr_block           = var.vpc_cidr
  enable_dns_hostnames = true
  tags                 = merge(local.tags, { Name = local.name })

  lifecycle {
    precondition {
      condition     = length(var.zones) >= 2
      error_message = "zones: name at least two, or give vpc_id with public_subnet_ids and private_subnet_ids."
    }
  }
}

resource "aws_internet_gateway" "this" {
  count  = local.own_vpc ? 1 : 0
  vpc_id = local.vpc_id
  tags   = merge(local.tags, { Name = local.name })
}

resource "aws_subnet" "public" {
  for_each          = local.own_zone
  vpc_id            = local.vpc_id
  availability_zone = each.key
  cidr_block        = cidrsubnet(var.vpc_cidr, 4, each.value)
  tags              = merge(local.tags, { Name = "${local.name}-public-${each.key}" })
}

resource "aws_subnet" "private" {
  for_each          = local.own_zone
  vpc_id            = local.vpc_id
  availability_zone = each.key
  cidr_block        = cidrsubnet(var.vpc_cidr, 4, 8 + each.value)
  tags              = merge(local.tags, { Name = "${local.name}-private-${each.key}" })
}

resource "aws_route_table" "public" {
  count  = local.own_vpc ? 1 : 0
  vpc_id = local.vpc_id
  tags   = merge(local.tags, { Name = "${local.name}-public" })
}

resource "aws_route" "out" {
  count                  = local.own_vpc ? 1 : 0
  route_table_id         = aws_route_table.public[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this[0].id
}

resource "aws_route_table_association" "public" {
  for_each       = aws_subnet.public
  subnet_id      = each.value.id
  route_table_id = aws_route_table.public[0].id
}

resource "aws_eip" "nat" {
  count  = local.own_vpc && var.nat_gateway ? 1 : 0
  domain = "vpc"
  tags   = merge(local.tags, { Name = "${local.name}-nat" })
}

resource "aws_nat_gateway" "this" {
  count         = local.own_vpc && var.nat_gateway ? 1 : 0
  allocation_id = aws_eip.nat[0].id
  subnet_id     = values(aws_subnet.public)[0].id
  tags          = merge(local.tags, { Name = local.name })
}

resource "aws_route_table" "private" {
  count  = local.own_vpc ? 1 : 0
  vpc_id = local.vpc_id
  tags   = merge(local.tags, { Name = "${local.name}-private" })
}

resource "aws_route" "private_out" {
  count                  = local.own_vpc && var.nat_gateway ? 1 : 0
  route_table_id         = aws_route_table.private[0].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this[0].id
}

resource "aws_route_table_association" "private" {
  for_each       = aws_subnet.private
  subnet_id      = each.value.id
  route_table_id = aws_route_table.private[0].id
}

# Weights come from S3 in most set-ups: over the gateway endpoint they cost nothing and pass no NAT.
resource "aws_vpc_endpoint" "s3" {
  count           = local.own_vpc ? 1 : 0
  vpc_id          = local.vpc_id
  service_name    = "com.amazonaws.${data.aws_region.current.name}.s3"
  route_table_ids = [aws_route_table.private[0].id]
  tags            = merge(local.tags, { Name = local.name })
}
