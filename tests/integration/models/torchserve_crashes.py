"""A handler for TorchServe whose worker ends as soon as it is imported. Runs in the server's own worker."""

raise RuntimeError("this handler cannot be imported")
