"""The stack that runs: the zygote describes it, `template` reads that, `prepared` makes it ready to serve.

The other rooms see its `Template`, with `Function`, `Route`, `StreamMapping`, and the `PreparedStack`.
"""
