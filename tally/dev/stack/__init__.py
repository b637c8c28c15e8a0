"""The stack that runs: the zygote describes it, `template` reads the description, `prepared` makes it ready to serve.

The other subpackages use its `PreparedStack`, and its `Template` with `Function`, `Route` and `StreamMapping`.
"""
