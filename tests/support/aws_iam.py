"""moto with its check of permissions on: users that may do what the module's role may, less one action.

moto checks actions, no conditions and no resources; that the module's conditions are as they should be is compared
statically (tests/terraform/test_aws_policy.py).
"""

import json
import urllib.request
import uuid

from tests.support import moto
from tests.support.module_policy import allowed_actions


def a_user(url: str, without: str = "") -> dict[str, str]:
    """Make a user that may do all that the module's role may but `without`; gives its keys as an environment."""
    iam, name = moto.client(url, "iam"), f"u-{uuid.uuid4().hex[:10]}"
    iam.create_user(UserName=name)
    actions = sorted(allowed_actions() - {without})
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]}
    iam.put_user_policy(UserName=name, PolicyName="all", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}


def check_permissions(url: str) -> None:
    """From now on each call to this server is checked, whoever makes it."""
    head = {"content-type": "text/plain"}
    asked = urllib.request.Request(f"{url}/moto-api/reset-auth", b"0", head, method="POST")
    with urllib.request.urlopen(asked, timeout=5) as answer:
        assert answer.status == 200
