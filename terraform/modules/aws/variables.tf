variable "installation" {
  description = "Name of this installation: it tags every machine, and the daemon touches no other's. Never change it while machines run."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?$", var.installation))
    error_message = "installation: up to 63 of a-z, 0-9, dot and dash, a letter or digit first and last."
  }
}

variable "pool" {
  description = "Name of the pool, and of what is made for it."
  type        = string
  default     = "llm"

  validation {
    condition     = can(regex("^[a-z0-9](?:[a-z0-9-]{0,18}[a-z0-9])?$", var.pool))
    error_message = "pool: up to 20 of a-z, 0-9 and dash, a letter or digit first and last (load balancers' names are short)."
  }
}

variable "mode" {
  description = "advise: the daemon decides and journals only, and has no permission to do more. act: it carries plans out."
  type        = string
  default     = "advise"

  validation {
    condition     = contains(["advise", "act"], var.mode)
    error_message = "mode: advise or act."
  }
}

# --- network ---

variable "vpc_id" {
  description = "An existing VPC; null makes one."
  type        = string
  default     = null
}

variable "public_subnet_ids" {
  description = "With vpc_id: at least two subnets in two zones for the load balancer."
  type        = list(string)
  default     = []
}

variable "private_subnet_ids" {
  description = "With vpc_id: subnets for the GPU machines and the daemon, with a way out for packages and models."
  type        = list(string)
  default     = []
}

variable "vpc_cidr" {
  description = "Without vpc_id: addresses of the VPC that is made."
  type        = string
  default     = "10.60.0.0/16"
}

variable "zones" {
  description = "Without vpc_id: at least two availability zones, by their whole names."
  type        = list(string)
  default     = []

  validation {
    condition     = length(var.zones) == 0 || length(var.zones) >= 2
    error_message = "zones: an application load balancer needs two."
  }
}

variable "nat_gateway" {
  description = "Without vpc_id: give private subnets a way out through one NAT gateway (costs by the hour and by the GB)."
  type        = bool
  default     = true
}

# --- load balancer ---

variable "internal" {
  description = "Whether the load balancer answers inside the VPC only."
  type        = bool
  default     = true
}

variable "client_cidrs" {
  description = "Who may send requests to the load balancer."
  type        = list(string)
}

variable "certificate_arn" {
  description = "Certificate for HTTPS on 443; null listens with HTTP on 80, for inside a VPC."
  type        = string
  default     = null
}

variable "longest_request_s" {
  description = "The longest request that must survive, seconds: the load balancer's idle timeout, the deregistration delay and the daemon's drain deadline follow it."
  type        = number
  default     = 900

  validation {
    condition     = var.longest_request_s >= 1 && var.longest_request_s <= 3600
    error_message = "longest_request_s: 1 to 3600, the most that a deregistration delay takes."
  }
}

variable "strategy" {
  description = "round_robin or least_connections."
  type        = string
  default     = "least_connections"

  validation {
    condition     = contains(["round_robin", "least_connections"], var.strategy)
    error_message = "strategy: round_robin or least_connections."
  }
}

# --- GPU machines ---

variable "image_id" {
  description = "AMI of the GPU machines, with driver, model server and model (a baked image starts minutes sooner)."
  type        = string
}

variable "instance_type" {
  description = "Type of the GPU machines."
  type        = string
  default     = "g6e.12xlarge"
}

variable "usd_per_hour" {
  description = "What a machine costs on demand, US dollars an hour: for the budget and for the choice among offers. Look it up for your region."
  type        = number
}

variable "spot" {
  description = "Try spot machines first; spot_usd_per_hour is what you expect to pay."
  type        = bool
  default     = false
}

variable "spot_usd_per_hour" {
  description = "What a spot machine costs, US dollars an hour."
  type        = number
  default     = 0
}

variable "root_volume_gib" {
  description = "Size of a GPU machine's encrypted root volume."
  type        = number
  default     = 200
}

variable "root_device_name" {
  description = "Name of the image's root device, as the AMI has it."
  type        = string
  default     = "/dev/xvda"
}

variable "user_data" {
  description = "What a GPU machine runs at its first boot: start the model server on model_port."
  type        = string
  default     = ""
}

variable "instance_profile_arn" {
  description = "Instance profile of the GPU machines (to fetch the model, say); null gives them no permission at all."
  type        = string
  default     = null
}

variable "model_port" {
  description = "Port of the model server."
  type        = number
  default     = 8000
}

variable "preset" {
  description = "Model server: vllm, sglang, tgi, llama_cpp, triton, torchserve, nim."
  type        = string
  default     = "vllm"
}

variable "model" {
  description = "Name of the model that must be loaded; empty takes the first that the server names."
  type        = string
  default     = ""
}

# --- pool ---

variable "capacity" {
  description = "Least and most machines."
  type        = object({ min = number, max = number })
  default     = { min = 1, max = 4 }
}

variable "budget_usd_per_hour" {
  description = "The most that all machines may cost together, US dollars an hour; null sets none."
  type        = number
  default     = null
}

variable "policies" {
  description = "Policies of the pool, as in the daemon's config."
  type        = any
  default = [
    { kind = "target_tracking", signal = "queue_length", target = 4 },
    { kind = "latency_slo", signal = "ttft_s_p95", objective = "2s" },
  ]
}

variable "extra" {
  description = "More of the pool's config, merged over what the module writes (pace, drain, telemetry, labels …)."
  type        = any
  default     = {}
}

# --- the daemon's host ---

variable "daemon_enabled" {
  description = "Make a host for the daemon; false if you run it elsewhere with the role and the config that are put out."
  type        = bool
  default     = true
}

variable "daemon_image_id" {
  description = "AMI of the daemon's host: a Debian 12 or Ubuntu 24.04 with cloud-init. Needed when daemon_enabled."
  type        = string
  default     = null
}

variable "daemon_instance_type" {
  description = "The daemon needs little: 2 vCPU and 2 GiB serve a hundred pools."
  type        = string
  default     = "t3.small"
}

variable "daemon_package" {
  description = "What pip installs on the daemon's host: a requirement, or the address of a wheel of yours."
  type        = string
  default     = "llm-pool-autoscaler[aws]"
}

variable "ledger_volume_gib" {
  description = "Size of the volume that holds the ledger and outlives the host."
  type        = number
  default     = 8
}

variable "tags" {
  description = "Tags of everything that this module makes."
  type        = map(string)
  default     = {}
}
