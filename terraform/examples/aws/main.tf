# The smallest whole set-up: a VPC, one pool of vLLM on spot and on-demand machines, in mode advise.
# docs/aws.md goes through it.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.40, < 7.0"
    }
  }
}

provider "aws" {
  region = var.region
}

variable "region" {
  type    = string
  default = "eu-west-1"
}

variable "image_id" {
  description = "AMI with GPU driver, vLLM and your model."
  type        = string
}

variable "daemon_image_id" {
  description = "AMI with Debian 12 or Ubuntu 24.04."
  type        = string
}

module "llm_pool" {
  source = "../../modules/aws"

  installation    = "prod-eu"
  pool            = "llama-70b"
  mode            = "advise"
  zones           = ["${var.region}a", "${var.region}b"]
  client_cidrs    = ["10.60.0.0/16"]
  image_id        = var.image_id
  daemon_image_id = var.daemon_image_id
  instance_type   = "g6e.12xlarge"
  # What you pay: look both up for your region.
  usd_per_hour        = 10.5
  spot                = true
  spot_usd_per_hour   = 6.1
  budget_usd_per_hour = 60
  capacity            = { min = 1, max = 5 }
}

output "config" {
  value = module.llm_pool.config
}

output "url" {
  value = module.llm_pool.url
}
